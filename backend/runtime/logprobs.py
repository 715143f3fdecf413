"""Log-probabilities of the tokens chosen, and of the likeliest ones, for the rows that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend.runtime.upload import upload
from backend.types.result import TokenLogprobs

LEAST_LOGPROB = -9999.0
"""Stands for a token that cannot come at all: JSON has no infinity."""


def read_logprobs(logprobs: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """`logprobs` fp32 [n, V], a token chosen and a number of likeliest ones for each row. Ties: the lower id first."""
    rows = range(len(token_ids))
    ids_chosen = upload(token_ids, torch.int64, logprobs.device)[:, None]
    chosen = logprobs.gather(1, ids_chosen)[:, 0].clamp(min=LEAST_LOGPROB).tolist()
    most = min(max(num_top), logprobs.shape[-1])
    top, top_ids = _likeliest(logprobs, most)
    values, ids = top.clamp(min=LEAST_LOGPROB).tolist(), top_ids.tolist()
    return [
        TokenLogprobs(token_ids[row], chosen[row], tuple(zip(ids[row][: num_top[row]], values[row], strict=False)))
        for row in rows
    ]


def _likeliest(logprobs: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `number` largest of each row of [n, V], and their ids, as a stable sort of all of them would order them.

    Only where the last of them equals the next one does it take such a sort to know which of the two is meant.
    """
    if number == 0:
        return logprobs[:, :0], torch.empty((len(logprobs), 0), dtype=torch.int64)
    if number == logprobs.shape[-1]:
        values, ids = logprobs.sort(dim=-1, descending=True, stable=True)
        return values[:, :number], ids[:, :number]
    largest, ids = logprobs.topk(number + 1, dim=-1)
    # By id, then by value: what is equal stays in the order of the ids.
    ids = ids[:, :number].sort(dim=-1).values
    values, order = logprobs.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    # Not "equal": no comparison with what is not a number holds.
    (tied,) = torch.where(~(largest[:, number - 1] > largest[:, number]))
    if len(tied):
        sorted_values, sorted_ids = logprobs[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = sorted_values[:, :number], sorted_ids[:, :number]
    return values, ids

"""Log-probabilities of the tokens chosen, and of the likeliest ones, for the rows that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend.types import TokenLogprobs

LEAST_LOGPROB = -9999.0
"""Stands for a token that cannot come at all: JSON has no infinity."""


def read_logprobs(logprobs: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """`logprobs` fp32 [n, V], a token chosen and a number of likeliest ones for each row. Ties: the lower id first."""
    rows = range(len(token_ids))
    chosen = logprobs[rows, list(token_ids)].clamp(min=LEAST_LOGPROB).tolist()
    most = min(max(num_top), logprobs.shape[-1])
    values, ids = logprobs.sort(dim=-1, descending=True, stable=True) if most else (logprobs[:, :0], logprobs[:, :0])
    values, ids = values[:, :most].clamp(min=LEAST_LOGPROB).tolist(), ids[:, :most].tolist()
    return [
        TokenLogprobs(token_ids[row], chosen[row], tuple(zip(ids[row][: num_top[row]], values[row], strict=False)))
        for row in rows
    ]

"""Log-probabilities of a prompt's own tokens, for the requests that ask what the model makes of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from backend.runtime.logprobs import read_logprobs
from backend.types.result import PromptLogprobs, TokenLogprobs
from backend.types.step import Chunk

ROWS_AT_ONCE = 64
"""Rows whose logits are made together: those of a whole prompt would take its length times the vocabulary."""


def score_prompts(
    chunks: Sequence[Chunk],
    starts: Sequence[int],
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, PromptLogprobs]:
    """What the `hidden` states [T, H] of each chunk say of the prompt tokens that follow its own.

    `starts` are the chunks' first rows. A prompt's first token follows nothing and has no log-probability.
    """
    scored: dict[str, PromptLogprobs] = {}
    for chunk, row in zip(chunks, starts, strict=False):
        num_top = chunk.sampling.num_prompt_logprobs
        if num_top is None:
            continue
        targets = chunk.prompt[chunk.start + 1 : chunk.start + 1 + chunk.num_tokens]
        told: list[TokenLogprobs] = []
        for first in range(0, len(targets), ROWS_AT_ONCE):
            wanted = targets[first : first + ROWS_AT_ONCE]
            logits = logits_of(hidden[row + first : row + first + len(wanted)])
            told += read_logprobs(torch.log_softmax(logits, dim=-1), wanted, [num_top] * len(wanted))
        if told:
            scored[chunk.request_id] = PromptLogprobs(chunk.start + 1, tuple(told))
    return scored

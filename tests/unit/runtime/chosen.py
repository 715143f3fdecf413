"""A draw that is waited for at once, with all that it tells: what tests compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from backend.runtime.choosing import draw
from backend.types.result import TokenLogprobs
from backend.types.step import Chunk


@dataclass(frozen=True, slots=True)
class Choice:
    """One token a row; `logprobs` by row where they were asked for, and requests that failed, with the reason."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def choose(logits: torch.Tensor, chunks: Sequence[Chunk], sample_indices: Sequence[int]) -> Choice:
    """`draw`, waited for."""
    drawn = draw(logits, chunks, sample_indices)
    token_ids = drawn.token_ids.tolist()
    return Choice(token_ids, drawn.logprobs_of(token_ids), drawn.failed)

"""Logit bias and penalties: what is known of a row's past, put into its logits before a token is chosen.

Rows do not see one another: every entry changed is named by its row. Knows nothing of grammars or of drawing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from backend.runtime.upload import upload
from backend.types.step import Chunk


def penalize(logits: torch.Tensor, chunks: Sequence[Chunk]) -> None:
    """Change logits fp32 [n, V] in place, one chunk a row: bias first, then repetition, frequency and presence.

    The meanings are those of `SamplingParams`; ids outside the vocabulary (an image's placeholder may be one) have no
    logit, and are passed over.
    """
    _add_biases(logits, chunks)
    _divide_repeated(logits, chunks)
    _subtract_used(logits, chunks)


def _add_biases(logits: torch.Tensor, chunks: Sequence[Chunk]) -> None:
    entries = [(row, token_id, bias) for row, c in enumerate(chunks) for token_id, bias in c.sampling.logit_bias]
    _add(logits, entries)


def _divide_repeated(logits: torch.Tensor, chunks: Sequence[Chunk]) -> None:
    entries = [
        (row, token_id, chunk.sampling.repetition_penalty)
        for row, chunk in enumerate(chunks)
        if chunk.sampling.repetition_penalty != 1.0
        for token_id in {*chunk.prompt, *chunk.history}
        if token_id < logits.shape[-1]
    ]
    if entries:
        rows, ids, penalties = _columns(entries, logits.device)
        values = logits[rows, ids]
        logits[rows, ids] = torch.where(values > 0, values / penalties, values * penalties)


def _subtract_used(logits: torch.Tensor, chunks: Sequence[Chunk]) -> None:
    entries = [
        (row, token_id, -chunk.sampling.frequency_penalty * count - chunk.sampling.presence_penalty)
        for row, chunk in enumerate(chunks)
        if chunk.sampling.frequency_penalty or chunk.sampling.presence_penalty
        for token_id, count in Counter(chunk.history).items()
    ]
    _add(logits, entries)


def _add(logits: torch.Tensor, entries: list[tuple[int, int, float]]) -> None:
    """Add to single logits; no (row, id) comes twice."""
    if entries:
        rows, ids, values = _columns(entries, logits.device)
        logits[rows, ids] += values


def _columns(
    entries: list[tuple[int, int, float]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, ids, values = zip(*entries, strict=True)
    return upload(rows, torch.int64, device), upload(ids, torch.int64, device), upload(values, torch.float32, device)

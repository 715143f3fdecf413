"""From the logits of a step's rows to tokens: grammars, log-probabilities, penalties, then the draw.

Rows of plain sampling go straight to the draw, and a step of nothing else pays nothing for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import torch

from backend.runtime.grammar_mask import mask_rows
from backend.runtime.logprobs import read_logprobs
from backend.runtime.penalties import penalize
from backend.runtime.sampler import GREEDY_BELOW, sample, uniform
from backend.runtime.upload import upload
from backend.types.request import SamplingParams
from backend.types.result import TokenLogprobs
from backend.types.step import Chunk


@dataclass(frozen=True, slots=True)
class Draw:
    """A choice that nobody has waited for: `token_ids` int64 [n] are on the device.

    `logprobs` fp32 [len(told), V] are those of the rows `told`, of which so many of the likeliest are asked for.
    """

    token_ids: torch.Tensor
    failed: dict[str, str] = field(default_factory=dict)
    told: Sequence[int] = ()
    num_top: Sequence[int] = ()
    logprobs: torch.Tensor | None = None

    def logprobs_of(self, token_ids: Sequence[int]) -> dict[int, TokenLogprobs]:
        """What is told of the rows that ask, now that the tokens are known."""
        if self.logprobs is None:
            return {}
        read = read_logprobs(self.logprobs, [token_ids[row] for row in self.told], self.num_top)
        return dict(zip(self.told, read, strict=True))


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token of its logits is all that a row asks for."""
    return params.temperature < GREEDY_BELOW and params.is_plain and params.num_logprobs is None


def draw(logits: torch.Tensor, chunks: Sequence[Chunk], sample_indices: Sequence[int]) -> Draw:
    """Choose from logits fp32 [n, V], which may be overwritten. Each row has its chunk and the number of its output."""
    params = [chunk.sampling for chunk in chunks]
    shaped = [row for row, p in enumerate(params) if not p.is_plain]
    told = [row for row, p in enumerate(params) if p.num_logprobs is not None]
    failed: dict[str, str] = {}
    logprobs = None
    if shaped:
        rows, own = _rows(logits, shaped), [chunks[row] for row in shaped]
        changed = logits.index_select(0, rows)
        failed = mask_rows(changed, own)
        logits.index_copy_(0, rows, changed)
        if told:
            logprobs = _log_softmax(logits, told)
        penalize(changed, own)
        logits.index_copy_(0, rows, changed)
    elif told:
        logprobs = _log_softmax(logits, told)
    # Hashes and mixing only for rows that draw: a greedy one's number is never looked at.
    draws = [
        _draw_for(chunk, index) if chunk.sampling.temperature >= GREEDY_BELOW else 0.0
        for chunk, index in zip(chunks, sample_indices, strict=True)
    ]
    num_top = [params[row].num_logprobs or 0 for row in told]
    return Draw(sample(logits, params, draws), failed, told, num_top, logprobs)


def _log_softmax(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return torch.log_softmax(logits.index_select(0, _rows(logits, rows)), dim=-1)


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return upload(rows, torch.int64, logits.device)


def _draw_for(chunk: Chunk, sample_index: int) -> float:
    """The row's number. Without a seed the request's id is one: fresh for each request, kept when preempted."""
    seed = chunk.sampling.seed
    if seed is None:
        seed = int.from_bytes(blake2b(chunk.request_id.encode(), digest_size=8).digest())
    return uniform(seed, sample_index)

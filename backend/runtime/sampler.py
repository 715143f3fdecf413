"""Logits -> token ids. Every row draws by itself: neither batch mates nor preemption change what it draws.

A draw is one uniform number, computed on the host from a seed and the output's number alone and carried through the
row's cumulative distribution. There is no generator whose state could depend on history, and nothing here waits for the
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from backend.runtime.upload import upload
from backend.types.request import SamplingParams

INVALID_TOKEN_ID = -1
"""Stands for a row whose logits were not numbers."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: only between exact ties could a draw choose, and float32 makes the smallest 0."""

_MASK64 = (1 << 64) - 1


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> torch.Tensor:
    """Token ids int64 [n] of logits fp32 [n, V]; `params` and `draws` (in [0, 1), see `uniform`) have one entry a row.

    A greedy row ignores its draw. Rows without a finite maximum give `INVALID_TOKEN_ID`.
    """
    chosen = likeliest(logits)
    drawing = [row for row, p in enumerate(params) if p.temperature >= GREEDY_BELOW]
    if drawing:
        rows = upload(drawing, torch.int64, logits.device)
        drawn = _draw(logits.index_select(0, rows), [params[r] for r in drawing], [draws[r] for r in drawing])
        drawn = torch.where(chosen.index_select(0, rows) == INVALID_TOKEN_ID, INVALID_TOKEN_ID, drawn)
        chosen = chosen.index_copy(0, rows, drawn)
    return chosen


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Greedy token ids int64 [n] of logits fp32 [n, V], the first of equal ones.

    Not-a-number counts as larger than any number. A row whose largest is not finite gives `INVALID_TOKEN_ID`.
    """
    if logits.device.type != "cpu":
        top, ids = logits.max(dim=-1)
        return torch.where(torch.isfinite(top), ids, INVALID_TOKEN_ID)
    # One thread of numpy's is as fast as all of torch's here, and need not wait for a second core. It lets go of the
    # interpreter once a call, and would copy rows that do not follow one another.
    rows = logits.numpy()
    ids = rows.argmax(axis=1) if rows.flags.c_contiguous else np.array([row.argmax() for row in rows])
    return torch.from_numpy(np.where(np.isfinite(rows[np.arange(len(rows)), ids]), ids, INVALID_TOKEN_ID))


def uniform(seed: int, sample_index: int) -> float:
    """A number in [0, 1), uniform over pairs of arguments: two rounds of the splitmix64 finaliser."""
    return _splitmix64(_splitmix64(seed & _MASK64) ^ (sample_index & _MASK64)) / 2.0**64 * (1.0 - 2.0**-53)


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> torch.Tensor:
    """Draw from softmax(logits / temperature) after min-p, top-k, top-p; all temperatures are above `GREEDY_BELOW`."""
    device = logits.device
    temperatures = upload([p.temperature for p in params], torch.float32, device)
    # The maximum is taken off before dividing, so that no temperature, however small, can overflow.
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperatures[:, None]
    if any(p.min_p > 0.0 for p in params):
        min_p = upload([p.min_p for p in params], torch.float64, device)
        # The likeliest is at 0, so that a share of it is a distance: min_p 0 is minus infinity away.
        scaled = scaled.masked_fill(scaled < min_p.log()[:, None], float("-inf"))
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        scaled = _restrict(scaled, params)
    # Vocabulary order, not order of probability: a near tie that flips by rounding then moves no other token's share.
    cumulative = torch.softmax(scaled, dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = upload(draws, torch.float64, device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def _restrict(scaled: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """-inf for tokens outside each row's top-k and, of those left, outside its top-p (the first token always stays)."""
    device, vocab_size = scaled.device, scaled.shape[-1]
    top_k = upload([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], torch.int64, device)
    top_p = upload([p.top_p for p in params], torch.float64, device)
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=device)
    ordered = ordered.masked_fill(rank >= top_k[:, None], float("-inf"))
    probabilities = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = (before >= top_p[:, None]) & (top_p[:, None] < 1.0) & (rank > 0)
    ordered = ordered.masked_fill(outside, float("-inf"))
    return torch.empty_like(scaled).scatter_(1, order, ordered)

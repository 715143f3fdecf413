"""How long a step takes: a model of its parts, refitted to every step that was timed.

    elapsed = base + sequence * sequences + token * tokens + kv_token * KV tokens read + its encoder slices

The first four are fitted here, by robust recursive least squares; encoder slices by `SliceCosts`. It knows neither the
policies that plan with it nor a clock: whoever timed a step says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from backend.sched.least_squares import LeastSquares
from backend.sched.slice_costs import SliceCosts
from backend.types import Chunk, Step

_SCALES = (1.0, 8.0, 64.0, 4096.0)
"""What counts as much of each part, so that the fit's matrix is of one order of magnitude."""

_FORGETTING = 0.98
"""The weight of a step, once another has come: the fit remembers about 50 steps."""

_SURPRISED_FORGETTING = 0.9
"""The same after a step that was off beyond `_CLIP`: where those come in a row, the machine has changed its speed."""

_INERTIA = 0.1
"""How hard each coefficient is to move, in steps: those that recent steps say nothing about stay where they are."""

_CLIP = 3.0
"""A step counts as at most so many spreads away from what was expected, so that one hiccup moves nothing by much."""

_SPREAD_GAIN = 0.05
_FIRST_SPREAD = 0.5
_LEAST_SPREAD = 0.02
_SPREAD_OF_MEAN = 1.25
"""A normal distribution's standard deviation in mean absolute deviations."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes beside encoder slices. A chunk reads the KV of everything up to its own last token.

    A guess counts as a sequence of its own: it reads all the KV again and has a row of logits.
    """

    sequences: int
    tokens: int
    kv_tokens: int


BARE_DECODE = Work(sequences=1, tokens=1, kv_tokens=1)
"""The least a step with a running answer computes."""


def work_of(chunks: Iterable[Chunk]) -> Work:
    """The work of these chunks together."""
    sequences = tokens = kv_tokens = 0
    for chunk in chunks:
        num_rows, num_tokens = 1 + chunk.num_drafts, len(chunk.token_ids)
        sequences += num_rows
        tokens += num_tokens
        kv_tokens += num_rows * (chunk.start + num_tokens)
    return Work(sequences, tokens, kv_tokens)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The fitted coefficients, in seconds, none of them negative.

    `base_s` is paid by a step that computes any token, `sequence_s` by each of its sequences, `token_s` by each token
    and `kv_token_s` by each token of KV that is read. `spread` is the usual relative error of a prediction.
    """

    base_s: float = 0.0
    sequence_s: float = 0.0
    token_s: float = 0.0
    kv_token_s: float = 0.0
    spread: float = _FIRST_SPREAD

    def __str__(self) -> str:
        return (
            f"{self.base_s * 1e3:.2f} ms a step + {self.sequence_s * 1e3:.2f} ms a sequence + {self.token_s * 1e3:.3f} "
            f"ms a token + {self.kv_token_s * 1e6:.2f} µs a token of KV, ± {self.spread:.0%}"
        )

    def forward_s(self, work: Work) -> float:
        """Seconds that `work` takes; none if there is none."""
        if work.sequences == 0:
            return 0.0
        parts = self.sequence_s * work.sequences + self.token_s * work.tokens + self.kv_token_s * work.kv_tokens
        return self.base_s + parts

    @property
    def bare_decode_s(self) -> float:
        """Seconds of a step with one short running answer."""
        return self.forward_s(BARE_DECODE)


class CostModel:
    """Learns what steps cost, one timed step after the other. Deterministic; one thread writes, any may read.

    `coefficients` and `slices` are the latest fit; `max_tokens` is the largest step seen: far beyond it a prediction is
    a guess.
    """

    def __init__(self) -> None:
        self.coefficients = StepCost()
        self.slices = SliceCosts()
        self.max_tokens = 0
        self.num_observed = 0
        self._squares = LeastSquares()

    def predict_s(self, step: Step) -> float:
        """Seconds that `step` should take."""
        return self.coefficients.forward_s(work_of(step.chunks)) + self.slices.total_s(step.encodes)

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Learn from one step. What no clock can mean (no time, or an endless one) is passed over.

        A step with encoder slices teaches their cost alone, given what its tokens cost: so the parts never
        take turns in explaining the same time.
        """
        if not 0.0 < elapsed_s < math.inf:
            return
        work = work_of(step.chunks)
        if step.encodes:
            self.slices.observe(step.encodes, elapsed_s - self.coefficients.forward_s(work))
        elif work.sequences:
            self._fit(work, elapsed_s)
        self.max_tokens = max(self.max_tokens, work.tokens)

    def _fit(self, work: Work, elapsed_s: float) -> None:
        """One step of least squares on relative errors, so that long steps do not outshout the short ones."""
        before = self.coefficients
        predicted_s = before.forward_s(work) if self.num_observed else elapsed_s
        reach = _CLIP * before.spread
        raw_error = elapsed_s / predicted_s - 1.0
        error = max(-reach, min(reach, raw_error))
        forgetting = _FORGETTING if error == raw_error else _SURPRISED_FORGETTING
        base, sequence, token, kv_token = _SCALES
        per = 1.0 / predicted_s
        row = (per / base, work.sequences * per / sequence, work.tokens * per / token, work.kv_tokens * per / kv_token)
        self._squares.learn(row, 1.0 + error, forgetting)
        old = (before.base_s * base, before.sequence_s * sequence, before.token_s * token, before.kv_token_s * kv_token)
        fitted = self._squares.solve(old, _INERTIA * per * per)
        found = (fitted[0] / base, fitted[1] / sequence, fitted[2] / token, fitted[3] / kv_token)
        spread = before.spread + _SPREAD_GAIN * (_SPREAD_OF_MEAN * abs(error) - before.spread)
        self.coefficients = StepCost(*found, spread=max(_LEAST_SPREAD, spread))
        self.num_observed += 1

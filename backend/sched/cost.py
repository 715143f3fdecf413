"""How long a step takes: a model of its parts, refitted to every step that was timed.

    elapsed = base + sequence * sequences + token * tokens + kv_token * KV tokens read + pair * pairs + its slices

The first five are fitted here, by robust recursive least squares; encoder slices by `SliceCosts`. All of them follow
the machine's pace together: what else it computes makes every part slower, also those that recent steps had none of.
It knows neither the policies that plan with it nor a clock: whoever timed a step says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from backend.sched.least_squares import solve_non_negative
from backend.sched.slice_costs import SliceCosts
from backend.types.step import Chunk, Step

_SCALES = (1.0, 8.0, 64.0, 4096.0, 262144.0)
"""What counts as much of each part, so that the fit's matrix is of one order of magnitude."""

_OF_DECODES, _OF_CHUNKS = (0, 1, 3), (2, 4)
"""Which parts a step teaches, once all are roughly known: base, sequence and KV token, or token and pair where it holds
a chunk of several tokens. So what comes seldom is not worn away by what comes always, which looks much the same."""

_FORGETTING = 0.98
"""The weight of a step, once another has come: the fit remembers about 50 steps."""

_PACE_GAIN = 0.1
"""How far a step moves the pace towards its own."""

_SLOW_TREND, _FAST_TREND = 16, 3
"""So many steps in a row that were off beyond `_CLIP`, all slow or all fast, are a new pace and no hiccups. Nothing but
the machine makes a step fast; what makes one slow is often another's turn, as a tenth of a second for a picture is."""

_TREND_GAIN = 0.5
_MIN_TREND, _MAX_TREND = -0.5, 1.0
_SETTLED, _FEW_CHUNKS = 40, 8
"""Steps, and chunks of several tokens, before the pace is followed: until then it is the parts that are not known. So
these chunks may move the fit as far as a first step may, and say nothing of its spread."""

_INERTIA = 0.1
"""How hard each coefficient is to move, in steps: those that recent steps say nothing about stay where they are."""

_CLIP, _SLOW_CLIP = 3.0, 1.0
"""A step counts as at most so many spreads away from what was expected, so that one hiccup moves nothing by much; fewer
where decodes were slow, and for the pace: a camera's picture is read when nothing but they runs, and would count as
what they cost."""

_SPREAD_GAIN = 0.05
_FIRST_SPREAD = 0.5
_LEAST_SPREAD = 0.02
_SPREAD_OF_MEAN = 1.25
"""A normal distribution's standard deviation in mean absolute deviations."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes beside encoder slices. A chunk reads the KV of everything up to its own last token.

    `pairs` counts, for each token, itself and those before it, which it attends to: what makes a chunk at the end of a
    long prompt dearer than one at its beginning. A guess counts as a sequence of its own: it reads all the KV again and
    has a row of logits.
    """

    sequences: int
    tokens: int
    kv_tokens: int
    pairs: int

    @classmethod
    def of_decodes(cls, lengths: Iterable[int]) -> Work:
        """One token each of sequences that are so long with it."""
        known = tuple(lengths)
        return cls(len(known), len(known), sum(known), sum(known))


BARE_DECODE = Work.of_decodes((1,))
"""The least a step with a running answer computes."""


def work_of(chunks: Iterable[Chunk]) -> Work:
    """The work of these chunks together."""
    sequences = tokens = kv_tokens = pairs = 0
    for chunk in chunks:
        sequences += 1 + chunk.num_drafts
        tokens += chunk.num_tokens
        kv_tokens += (1 + chunk.num_drafts) * (chunk.start + chunk.num_tokens)
        pairs += chunk.num_tokens * chunk.start + chunk.num_tokens * (chunk.num_tokens + 1) // 2
    return Work(sequences, tokens, kv_tokens, pairs)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The fitted coefficients, in seconds, none of them negative.

    `base_s` is paid by a step that computes any token, `sequence_s` by each of its sequences, `token_s` by each token,
    `kv_token_s` by each token of KV that is read, `pair_s` by each token and token it attends to. `spread` is the
    usual relative error of a prediction.
    """

    base_s: float = 0.0
    sequence_s: float = 0.0
    token_s: float = 0.0
    kv_token_s: float = 0.0
    pair_s: float = 0.0
    spread: float = _FIRST_SPREAD

    def __str__(self) -> str:
        return (
            f"{self.base_s * 1e3:.2f} ms a step + {self.sequence_s * 1e3:.2f} ms a sequence + {self.token_s * 1e3:.3f} "
            f"ms a token + {self.kv_token_s * 1e6:.2f} µs a token of KV + {self.pair_s * 1e6:.2f} µs a token and one "
            f"before it, ± {self.spread:.0%}"
        )

    def forward_s(self, work: Work) -> float:
        """Seconds that `work` takes; none if there is none."""
        if work.sequences == 0:
            return 0.0
        parts = self.sequence_s * work.sequences + self.token_s * work.tokens
        return self.base_s + parts + self.kv_token_s * work.kv_tokens + self.pair_s * work.pairs

    def at_pace(self, pace: float) -> StepCost:
        """The same on a machine that takes `pace` times as long for everything."""
        parts = (self.base_s, self.sequence_s, self.token_s, self.kv_token_s, self.pair_s)
        return StepCost(*(part * pace for part in parts), spread=self.spread)

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
        self._num_surprises = 0
        self._num_chunks = 0
        self._information = [[0.0] * len(_SCALES) for _ in _SCALES]
        self._moment = [0.0] * len(_SCALES)

    def predict_s(self, step: Step) -> float:
        """Seconds that `step` should take."""
        return self.coefficients.forward_s(work_of(step.chunks)) + self.slices.total_s(step.encodes)

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Learn from one step. What no clock can mean (no time, or an endless one) is passed over.

        A step with encoder slices teaches their cost alone, given what its tokens cost: so the parts never
        take turns in explaining the same time, and a slice that slows decodes down, by what it leaves of the caches,
        counts with all that it costs them.
        """
        if not 0.0 < elapsed_s < math.inf:
            return
        work = work_of(step.chunks)
        if step.encodes:
            self.slices.observe(step.encodes, elapsed_s - self.coefficients.forward_s(work))
        elif work.sequences:
            self._fit(work, elapsed_s)
        self.max_tokens = max(self.max_tokens, work.tokens)

    def _follow_pace(self, predicted_s: float, elapsed_s: float) -> None:
        """Restate all that is known at the pace of a step that should have taken `predicted_s`.

        What is remembered of old steps is restated, too. Else parts that come seldom, such as prompt tokens, would be
        told apart from the others by comparing a slow hour with a fast one.
        """
        if self.num_observed < _SETTLED or predicted_s <= 0.0:
            return
        raw_error, reach = elapsed_s / predicted_s - 1.0, _CLIP * self.coefficients.spread
        if abs(raw_error) <= reach:
            self._num_surprises = 0
        else:
            sign = 1 if raw_error > 0.0 else -1
            self._num_surprises = sign * (1 + max(0, sign * self._num_surprises))
        if self._num_surprises >= _SLOW_TREND or -self._num_surprises >= _FAST_TREND:
            pace = 1.0 + _TREND_GAIN * max(_MIN_TREND, min(_MAX_TREND, raw_error))
        else:
            pace = 1.0 + _PACE_GAIN * max(-reach, min(_SLOW_CLIP * self.coefficients.spread, raw_error))
        self.coefficients = self.coefficients.at_pace(pace)
        self.slices.pace *= pace
        self._moment = [value / pace for value in self._moment]
        self._information = [[value / pace**2 for value in line] for line in self._information]

    def _fit(self, work: Work, elapsed_s: float) -> None:
        """One step of least squares on relative errors, so that long steps do not outshout the short ones."""
        is_chunk = work.tokens > work.sequences
        is_early = is_chunk and self._num_chunks < _FEW_CHUNKS
        self._num_chunks += is_chunk
        if not is_early:
            self._follow_pace(self.coefficients.forward_s(work), elapsed_s)
        before = self.coefficients
        predicted_s = before.forward_s(work) if self.num_observed else elapsed_s
        is_settled = self.num_observed >= _SETTLED
        reach = _CLIP * (max(before.spread, _FIRST_SPREAD) if is_early else before.spread)
        slow_reach = _SLOW_CLIP * before.spread if is_settled and not is_chunk else reach
        error = max(-reach, min(slow_reach, elapsed_s / predicted_s - 1.0))
        parts = (1.0, work.sequences, work.tokens, work.kv_tokens, work.pairs)
        row = [part / scale / predicted_s for part, scale in zip(parts, _SCALES, strict=True)]
        inertia = _INERTIA / predicted_s**2
        for i, a in enumerate(row):
            self._moment[i] = _FORGETTING * self._moment[i] + a * (1.0 + error)
            for j, b in enumerate(row):
                self._information[i][j] = _FORGETTING * self._information[i][j] + a * b
        old = (before.base_s, before.sequence_s, before.token_s, before.kv_token_s, before.pair_s)
        known = [coefficient * scale for coefficient, scale in zip(old, _SCALES, strict=True)]
        free = range(len(_SCALES))
        if is_settled:
            free = _OF_CHUNKS if is_chunk else _OF_DECODES
        matrix = [[v + inertia * (i == j) for j, v in enumerate(line)] for i, line in enumerate(self._information)]
        vector = [m + inertia * c for m, c in zip(self._moment, known, strict=True)]
        fitted = [c / s for c, s in zip(solve_non_negative(matrix, vector, known, free), _SCALES, strict=True)]
        spread = before.spread
        if not is_early:
            spread += _SPREAD_GAIN * (_SPREAD_OF_MEAN * abs(error) - spread)
        self.coefficients = StepCost(*fitted, spread=max(_LEAST_SPREAD, spread))
        self.num_observed += 1

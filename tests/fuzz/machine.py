"""A machine that takes as long for a step as it is told to, noise and hiccups included."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from backend.sched.cost import work_of
from backend.types.step import Step


@dataclass
class Machine:
    """Seconds of each part of a step; `noise` is a relative standard deviation, `hiccup_odds` those of a tenfold step.

    Slice i of an image costs `slice_s[i % len(slice_s)]`, and `mate_share` of that for each more in its batch.
    `token_power` above 1 makes long chunks cost more than their share, below 1 less.
    """

    base_s: float = 0.010
    sequence_s: float = 0.0008
    token_s: float = 0.0005
    kv_token_s: float = 0.4e-6
    pair_s: float = 0.0
    slice_s: tuple[float, ...] = (0.008, 0.004, 0.012)
    noise: float = 0.0
    hiccup_odds: float = 0.0
    mate_share: float = 1.0
    token_power: float = 1.0
    slowdown: float = 1.0
    seed: int = 0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def exact_s(self, step: Step) -> float:
        """Seconds without noise."""
        work = work_of(step.chunks)
        seconds = self.sequence_s * work.sequences + self.kv_token_s * work.kv_tokens + self.pair_s * work.pairs
        seconds += self.base_s if work.sequences else 0.0
        seconds += self.token_s * work.tokens**self.token_power
        for encode in step.encodes:
            load = 1.0 + self.mate_share * len(encode.mates)
            for index in range(encode.first_slice, encode.first_slice + encode.num_slices):
                seconds += load * self.slice_s[index % len(self.slice_s)]
        return seconds * self.slowdown

    def time_s(self, step: Step) -> float:
        """Seconds that `step` takes this time."""
        seconds = self.exact_s(step) * max(0.2, self.rng.gauss(1.0, self.noise))
        return seconds * (10.0 if self.rng.random() < self.hiccup_odds else 1.0)

"""How long to wait before trying again. Pure: chance comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays in seconds, jittered downwards so that many cameras of one switch do not return at once."""

    first_s: float = 1.0
    factor: float = 2.0
    max_s: float = 30.0
    jitter: float = 0.5

    def delay_s(self, num_failures: int, chance: float) -> float:
        """The wait after `num_failures` (from 1) failures in a row; `chance` is uniform in 0..1.

        The full delay doubles up to `max_s`; the result lies between `1 - jitter` of it and all of it.
        """
        exponent = min(max(num_failures, 1) - 1, 64)
        full_s = min(self.first_s * self.factor**exponent, self.max_s)
        return full_s * (1.0 - self.jitter * chance)

"""A histogram of plain numbers: cheap enough to be told of every token, read as Prometheus wants it when somebody asks.

The client library's own takes locks and looks up labels for each value, which at 64 answers a step adds up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts of values up to each of `bounds`, rising, and beyond the last. One thread writes, any may read."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """One more value; one that equals a bound belongs to it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """(bound, values up to it) for each bound, "+Inf" last, and the sum of all values."""
        names = (*map(floatToGoString, self._bounds), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True)), self._total

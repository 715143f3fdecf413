"""The wall clock with doubts: after it was set anew it is not believed for a day, since it may be set back.

A clock without a battery starts in another year, and a wrong time server is noticed by somebody sooner or later; what
is removed meanwhile for being too old would be gone for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

STEP_S = 3600.0
"""What the clock may gain or lose between two looks without having been set."""
DOUBT_S = 86_400.0


def _since_boot() -> float:
    """Seconds that pass also while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class WallClock:
    """Compares the wall clock with one that nobody sets. `wall` and `steady` give seconds."""

    def __init__(self, wall: Callable[[], float] | None = None, steady: Callable[[], float] = _since_boot) -> None:
        self._wall = wall or (lambda: time.time())
        self._steady = steady
        self._offset_s = self._wall() - steady()
        self._t_set = float("-inf")

    def try_now(self) -> float | None:
        """Unix seconds, or None for a day after the clock was set by more than `STEP_S`."""
        wall, steady = self._wall(), self._steady()
        gained_s = wall - steady - self._offset_s
        self._offset_s = wall - steady
        if abs(gained_s) > STEP_S:
            self._t_set = steady
            way = "on" if gained_s > 0 else "back"
            log.warning(
                "the clock was set %s by %.1f h: no event goes for its age for a day", way, abs(gained_s) / 3600
            )
        return None if steady - self._t_set < DOUBT_S else wall

"""The wall clock with doubts: after it was set anew, or begins far past the last event, it is not believed for a day.

A clock without a battery starts in another year, and a wrong time server is noticed by somebody sooner or later: it is
set back. What is removed meanwhile for being too old would be gone for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

STEP_S = 3600.0
"""What the clock may gain or lose between two looks without having been set."""
DOUBT_S = 86_400.0
UNSEEN_S = 86_400.0
"""How far past the last event the clock may begin and be believed: a machine that is off every night still is."""


def _since_boot() -> float:
    """Seconds that pass also while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class WallClock:
    """Compares the wall clock with one that nobody sets. `wall` and `steady` give seconds.

    `last_wall` is the time of the last event, in Unix seconds; None without one.
    """

    def __init__(
        self,
        last_wall: float | None,
        wall: Callable[[], float] | None = None,
        steady: Callable[[], float] = _since_boot,
    ) -> None:
        self._wall = wall or (lambda: time.time())
        self._steady = steady
        wall_now, steady_now = self._wall(), steady()
        self._offset_s = wall_now - steady_now
        self._t_set = float("-inf")
        if last_wall is not None and (unseen_s := wall_now - last_wall) > UNSEEN_S:
            self._t_set = steady_now
            log.warning(
                "the clock is %.1f days past the last event: no event goes for its age for a day", unseen_s / 86_400
            )

    def try_now(self) -> float | None:
        """Unix seconds, or None for a day after the clock was set by more than `STEP_S` or began past `UNSEEN_S`."""
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

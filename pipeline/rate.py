"""How often a camera is looked at: a pure sampler of a clock, and the rate that a share of one core can afford."""

from __future__ import annotations

CORE_SHARE = 0.4  # of one core, for all cameras together: the rest belongs to the engine
SLOWEST_FPS = 1.0  # below this a passer-by would not be seen twice
TOLERANCE_S = 1e-3  # container timestamps are rounded: 0.599 is the 0.6 that was due


class Sampler:
    """Picks frames from a clock at most `fps` times a second, without drifting when the frame rate does not divide.

    After a pause longer than a period, or a clock set back, the grid starts anew at the frame that came.
    """

    def __init__(self, fps: float) -> None:
        self.fps = fps
        self._due: float | None = None
        self._last = float("-inf")

    @property
    def due(self) -> float:
        """When the next frame is due on the clock; the past before the first."""
        return float("-inf") if self._due is None else self._due

    def try_take(self, clock_s: float) -> bool:
        """Whether the frame at `clock_s` is due; if so, the next one is due a period later."""
        period_s = 1.0 / self.fps
        went_back = clock_s < self._last
        self._last = clock_s
        if self._due is not None and not went_back and clock_s < self._due - TOLERANCE_S:
            return False
        on_grid = self._due is not None and not went_back and clock_s < self._due + period_s - TOLERANCE_S
        self._due = (self._due if on_grid and self._due is not None else clock_s) + period_s
        return True


def affordable_fps(cost_s: float, num_cameras: int, wanted_fps: float) -> float:
    """Detections per second and camera so that all together use at most `CORE_SHARE` of a core at `cost_s` CPU each."""
    if cost_s <= 0:
        return wanted_fps
    return min(wanted_fps, max(SLOWEST_FPS, CORE_SHARE / (cost_s * num_cameras)))

"""Timestamps that only grow, though containers and streams leave them out, repeat them or restart them."""

from __future__ import annotations

from math import isfinite


class FileClock:
    """The presentation times of a file's frames, in seconds, strictly growing over any number of loops.

    A time that does not grow (missing, repeated, restarted) is replaced by the previous one plus `frame_s`, the
    nominal length of a frame; with no usable times at all that is frame index / fps.
    """

    def __init__(self, frame_s: float) -> None:
        self._frame_s = frame_s
        self._offset_s = 0.0
        self._last_s: float | None = None

    def tick(self, raw_s: float) -> float:
        """The time of the next frame, whose container says `raw_s` (counted from the file's start)."""
        time_s = raw_s + self._offset_s
        if self._last_s is None:
            time_s = raw_s if isfinite(raw_s) and raw_s >= 0 else 0.0
        elif not isfinite(time_s) or time_s <= self._last_s:
            time_s = self._last_s + self._frame_s
        self._last_s = time_s
        return time_s

    def rewind(self) -> None:
        """The file starts over: its first frame follows the last one by one frame length."""
        if self._last_s is not None:
            self._offset_s = self._last_s + self._frame_s


class LiveClock:
    """The presentation times of a live stream, in seconds since its source started, strictly growing over reconnects.

    The stream's own times are kept while they agree with the monotonic clock to within `slack_s`; after a jump (a
    restart, an RTCP correction, a missing time) they are anchored to it again.
    """

    def __init__(self, t_start: float, slack_s: float = 1.0) -> None:
        self._t_start = t_start
        self._slack_s = slack_s
        self._offset_s = 0.0
        self._last_s = -1.0

    def tick(self, raw_s: float, t_mono: float) -> float:
        """The time of the next frame, which the stream stamps `raw_s` and which was decoded at `t_mono`."""
        elapsed_s = t_mono - self._t_start
        if not isfinite(raw_s):
            raw_s = elapsed_s - self._offset_s
        if abs(raw_s + self._offset_s - elapsed_s) > self._slack_s:
            self._offset_s = elapsed_s - raw_s
        self._last_s = max(raw_s + self._offset_s, self._last_s + 1e-3)
        return self._last_s

"""Imported by every Python that finds this directory on PYTHONPATH: its wall clock is off by the seconds in `offset`.

Moves what Python programs read (`time.time`, and the calendar of now), not the kernel's clock: files keep their times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OFFSET = Path(__file__).with_name("offset")

_time, _time_ns, _localtime, _gmtime = time.time, time.time_ns, time.localtime, time.gmtime
_seen: tuple[float, float] = (float("-inf"), 0.0)  # when the file was read, and what it said


def _offset_s() -> float:
    global _seen
    now = time.monotonic()
    if now - _seen[0] > 0.1:
        try:
            _seen = (now, float(OFFSET.read_text() or 0))
        except (OSError, ValueError):
            _seen = (now, 0.0)
    return _seen[1]


class _Shifted:
    """A clock of module `time`, shifted. No function: as an attribute of a class it must not become a method."""

    def __init__(self, clock: Callable[..., Any], now: Callable[[], Any] | None = None) -> None:
        self._clock = clock
        self._now = now

    def __call__(self, *moment: float | None) -> Any:
        if self._now is None:
            return self._clock() + (_offset_s() if self._clock is _time else int(_offset_s() * 1e9))
        return self._clock(self._now() if moment in ((), (None,)) else moment[0])


time.time, time.time_ns = _Shifted(_time), _Shifted(_time_ns)
time.localtime, time.gmtime = _Shifted(_localtime, time.time), _Shifted(_gmtime, time.time)

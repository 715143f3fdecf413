"""Imported by every Python that finds this directory on PYTHONPATH: its wall clock is off by the seconds in `offset`.

Moves what Python programs read (`time.time`, and the calendar of now), not the kernel's clock: files keep their times.
"""

from __future__ import annotations

import time
from pathlib import Path

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


def _shifted() -> float:
    return _time() + _offset_s()


def _shifted_ns() -> int:
    return _time_ns() + int(_offset_s() * 1e9)


def _local(seconds: float | None = None, /) -> time.struct_time:
    return _localtime(_shifted() if seconds is None else seconds)


def _universal(seconds: float | None = None, /) -> time.struct_time:
    return _gmtime(_shifted() if seconds is None else seconds)


time.time, time.time_ns, time.localtime, time.gmtime = _shifted, _shifted_ns, _local, _universal

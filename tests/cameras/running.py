"""Live sources in tests: surely stopped, and waited for with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from camera_sources.base import SourceState, SourceStatus
from camera_sources.frame import Frame
from camera_sources.live import LiveSource


@contextmanager
def running(source: LiveSource) -> Iterator[LiveSource]:
    """`source`, started, and stopped at the end whatever happens."""
    source.start()
    try:
        yield source
    finally:
        source.stop()


def wait_for(source: LiveSource, accept: Callable[[SourceStatus], bool], timeout_s: float = 20.0) -> SourceStatus:
    """The first status that `accept` accepts; fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not accept(status := source.status()):
        assert time.monotonic() < deadline, f"still {status}"
        time.sleep(0.02)
    return status


def read_some(source: LiveSource, num: int) -> list[Frame]:
    """The next `num` frames."""
    frames = []
    while len(frames) < num:
        frame = source.read(15.0)
        assert frame is not None, source.status()
        frames.append(frame)
    return frames


def is_live(status: SourceStatus) -> bool:
    return status.state is SourceState.LIVE


def is_down(status: SourceStatus) -> bool:
    return status.state is SourceState.DOWN


def is_stale(status: SourceStatus) -> bool:
    return status.state is SourceState.STALE

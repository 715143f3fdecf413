"""What every source of frames offers. A source owns its reading (thread or child process) and its own recovery."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from camera_sources.frame import Frame


class SourceState(StrEnum):
    """Where a source stands. `ENDED` is final; `DOWN` is being retried."""

    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"
    DOWN = "down"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A reading of one source: its state, why (redacted; empty when all is well), and its counters.

    `num_total` is how many frames there are in all, where the source has an end and knows it.
    """

    state: SourceState
    reason: str = ""
    num_frames: int = 0
    num_dropped: int = 0
    num_reconnects: int = 0
    frame_age_s: float | None = None
    num_total: int | None = None


class SourceError(Exception):
    """A source that cannot work as given (missing file, empty folder, bad URL). One line, credentials redacted."""


class Source(Protocol):
    """A camera, a file or a folder, read one frame at a time.

    `is_live` says which clock rules: live sources are timed by `t_mono` and deliver the newest frame; files are timed
    by `pts_s` and deliver every frame, or, when paced, the frames a live viewer would see.
    """

    camera_id: str
    is_live: bool

    def start(self) -> None:
        """Begin reading. Raises `SourceError` for what can be known at once (a missing file); a network is retried."""
        ...

    def read(self, timeout_s: float) -> Frame | None:
        """The next frame not yet delivered, or None after `timeout_s` or once ended. Called from one thread only."""
        ...

    def status(self) -> SourceStatus:
        """Never blocks; callable from any thread."""
        ...

    def stop(self) -> None:
        """End reading and free everything; returns within 2 s whatever the source is doing. Callable more than once."""
        ...

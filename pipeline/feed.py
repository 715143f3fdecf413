"""The pipeline's live news: what the page and the terminal listen to. Keeps nothing; the store remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.events import Event, Selection, Track
from camera_sources.base import SourceStatus


@dataclass(frozen=True, slots=True)
class FrameSeen:
    """A camera's newest picture as JPEG (at most 5 a second per camera), with the tracks in it."""

    camera_id: str
    frame_seq: int
    width: int
    height: int
    jpeg: bytes = field(repr=False)
    tracks: tuple[Track, ...]
    t_captured: float


@dataclass(frozen=True, slots=True)
class CameraChanged:
    """A camera's status, on every change of state and about once a second."""

    camera_id: str
    status: SourceStatus
    detector_fps: float


@dataclass(frozen=True, slots=True)
class CaptionQueued:
    """A selection entered the queue; its picture is `jpeg`."""

    selection: Selection
    jpeg: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CaptionDelta:
    """More words of a caption that is streaming in."""

    event_id: str
    text: str
    t_token: float


@dataclass(frozen=True, slots=True)
class EventEnded:
    """An event ended (whatever its status); `event` is final and already stored."""

    event: Event


FeedItem = FrameSeen | CameraChanged | CaptionQueued | CaptionDelta | EventEnded

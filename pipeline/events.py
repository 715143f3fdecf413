"""The pipeline's frozen values, in the order a frame becomes an event.

Frame -> Detection -> Track -> Selection -> CaptionJob -> Caption -> Event. Errors are states of an event, never caption
text; a Caption cannot be built without its frame's seq and capture time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from camera_sources.frame import Frame


class Reason(StrEnum):
    """Why the gate selected a frame."""

    NEW_TRACK = "new_track"
    CHANGE = "change"
    INTERVAL = "interval"


class EventStatus(StrEnum):
    """How an event ended; every event ends exactly once."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Box:
    """A person's box in pixels of its frame, with the detector's confidence (0..1)."""

    x1: float
    y1: float
    x2: float
    y2: float
    conf: float


@dataclass(frozen=True, slots=True)
class Detection:
    """The persons YOLO saw in one frame."""

    frame: Frame
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """One person followed over frames of one camera. `num_hits` counts the detections it was matched to so far.

    `zone` is the name of the zone the person stands in; None where the camera has none to stand in.
    """

    track_id: int
    box: Box
    num_hits: int
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """A frame worth a caption. `tracks` are all confirmed tracks in view; `subject_ids` those that caused it.

    `num_detected` is how many persons the detector saw in the whole frame, those included that do not count (yet).
    """

    event_id: str
    frame: Frame
    tracks: tuple[Track, ...]
    subject_ids: tuple[int, ...]
    reason: Reason
    t_selected: float
    num_detected: int = 0

    @property
    def zone(self) -> str | None:
        """Where the subjects stand, `drive and lawn` if in several zones; None without zones."""
        zones = {track.zone: None for track in self.tracks if track.track_id in self.subject_ids and track.zone}
        return " and ".join(name for name in zones if name) or None


@dataclass(frozen=True, slots=True)
class CaptionJob:
    """One request to the backend: the selection, its JPEG as sent, and the prompt.

    `wants_details` asks for an answer in JSON where the backend can be held to it.
    """

    selection: Selection
    jpeg: bytes = field(repr=False)
    prompt: str
    wants_details: bool = False


@dataclass(frozen=True, slots=True)
class Details:
    """What a caption in JSON says beside its description. `num_people` is the model's count, not the detector's."""

    title: str
    num_people: int
    notable: bool


@dataclass(frozen=True, slots=True)
class Caption:
    """Words about one frame. Times are seconds of the monotonic clock."""

    camera_id: str
    frame_seq: int
    t_captured: float
    text: str
    model: str
    t_sent: float
    t_first_token: float
    t_last_token: float
    details: Details | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What is kept of a selection once it ended: one row of the store, one line of JSONL (which adds nothing to it).

    Times named `t_*` are seconds of one monotonic clock, None where that point was never reached; `t_wall` is Unix time
    of the frame. `boxes` are aligned with `track_ids`. `caption` is None unless `status` is OK; `error` is one line for
    FAILED. `jpeg_path` is relative to the data directory, None without a store. `zone` is where the people stand who
    caused the event; `count_mismatch` says that the caption speaks of more or fewer people than the detector saw.
    """

    event_id: str
    camera: str
    frame_seq: int
    pts_s: float
    track_ids: tuple[int, ...]
    boxes: tuple[Box, ...]
    reason: Reason
    status: EventStatus
    caption: str | None
    model: str | None
    t_captured: float
    t_selected: float
    t_sent: float | None
    t_first_token: float | None
    t_last_token: float | None
    t_wall: float
    error: str | None = None
    jpeg_path: str | None = None
    zone: str | None = None
    count_mismatch: bool = False
    details: Details | None = None

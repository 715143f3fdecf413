"""Where a pipeline stands, as values. Knows nothing of how they are counted."""

from __future__ import annotations

from dataclasses import dataclass

from camera_sources.base import SourceStatus
from pipeline.events import EventStatus


@dataclass(frozen=True, slots=True)
class CameraReading:
    """One camera's counters: frames looked at, frames pushed out unseen, selections waiting, event in flight."""

    camera_id: str
    source: SourceStatus
    detector_fps: float
    num_detected: int
    num_unseen: int
    num_queued: int
    in_flight: str | None


@dataclass(frozen=True, slots=True)
class PipelineReading:
    """Where the pipeline stands. `failure` is one line once it broke."""

    cameras: tuple[CameraReading, ...]
    num_by_status: dict[EventStatus, int]
    failure: str | None

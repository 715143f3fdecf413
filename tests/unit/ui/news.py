"""Feed items for tests, made from as little as a test wants to say."""

from __future__ import annotations

import numpy as np

from camera_sources.frame import Frame
from pipeline.events import Box, Event, EventStatus, Reason, Selection, Track
from pipeline.feed import CaptionDelta, CaptionQueued, EventEnded, FrameSeen

TRACK = Track(7, Box(10, 20, 30, 60, 0.9), 3)


def seen(seq: int, camera: str = "door") -> FrameSeen:
    return FrameSeen(camera, seq, 64, 48, b"jpeg %d" % seq, (TRACK,), t_captured=float(seq))


def queued(event_id: str, *, t_captured: float = 100.0, camera: str = "door") -> CaptionQueued:
    frame = Frame(camera, 1, t_captured, 1_700_000_000.0, 0.0, np.zeros((48, 64, 3), np.uint8))
    return CaptionQueued(Selection(event_id, frame, (TRACK,), (7,), Reason.NEW_TRACK, t_captured), b"picture")


def words(event_id: str, text: str, t_token: float) -> CaptionDelta:
    return CaptionDelta(event_id, text, t_token)


def ended(
    event_id: str,
    status: EventStatus = EventStatus.OK,
    caption: str | None = "A man waits.",
    *,
    error: str | None = None,
    camera: str = "door",
) -> EventEnded:
    return EventEnded(
        Event(
            event_id=event_id,
            camera=camera,
            frame_seq=1,
            pts_s=0.0,
            track_ids=(7,),
            boxes=(TRACK.box,),
            reason=Reason.NEW_TRACK,
            status=status,
            caption=caption if status is EventStatus.OK else None,
            model="demo" if status is EventStatus.OK else None,
            t_captured=100.0,
            t_selected=100.1,
            t_sent=100.2,
            t_first_token=100.5 if status is EventStatus.OK else None,
            t_last_token=102.0 if status is EventStatus.OK else None,
            t_wall=1_700_000_000.0,
            error=error,
        )
    )

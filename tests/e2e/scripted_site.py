"""Made-up pictures, people and events for a page that is served alone."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

from PIL import Image, ImageDraw

from pipeline.events import Box, Event, EventStatus, Reason, Track
from pipeline.picture_note import Cut, with_note
from pipeline.schema import EVENTS
from pipeline.store import EventStore, _to_row

SIZE = (640, 360)
CAPTIONS = (
    "A man in a red jacket walks a dog past the gate.",
    "Two people carry a ladder across the yard.",
    "A woman on a bicycle waits beside a parked car.",
    "A child in a yellow coat runs towards the door.",
)


def picture(index: int, seq: int) -> bytes:
    """A JPEG of `SIZE` whose colour says the camera and whose bar moves with `seq`."""
    image = Image.new("RGB", SIZE, ((60 * index) % 200, 90 + (20 * index) % 100, 120))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 300, SIZE[0], SIZE[1]), fill=(50, 55, 60))
    left = 20 + (7 * seq) % 500
    draw.ellipse((left + 30, 120, left + 70, 160), fill=(230, 190, 160))
    draw.rectangle((left + 25, 160, left + 75, 300), fill=(170, 40, 40))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()


def track(seq: int) -> Track:
    left = 20 + (7 * seq) % 500
    return Track(7, Box(left + 20, 115, left + 80, 302, 0.9), 9)


def an_event(number: int, camera: str, t_wall: float, **values: Any) -> Event:
    """Event `number`, described in one of four ways."""
    made: dict[str, Any] = {
        "event_id": f"event-{number:06d}",
        "camera": camera,
        "frame_seq": number,
        "pts_s": float(number),
        "track_ids": (7,),
        "boxes": (track(number).box,),
        "reason": Reason.NEW_TRACK if number % 3 else Reason.INTERVAL,
        "status": EventStatus.OK,
        "caption": f"{CAPTIONS[number % len(CAPTIONS)]} Visit {number}.",
        "model": "scripted",
        "t_captured": 1000.0 + number,
        "t_selected": 1000.1 + number,
        "t_sent": 1000.2 + number,
        "t_first_token": 1000.9 + number,
        "t_last_token": 1002.4 + number,
        "t_wall": t_wall,
    }
    return Event(**{**made, **values})


def fill(store: EventStore, cameras: list[str], num_events: int) -> None:
    """`num_events` events, half a minute apart, the last of them now; each camera's share one picture."""
    now = time.time()
    kept: dict[str, Event] = {}
    rows = []
    for number in range(num_events):
        camera = cameras[number % len(cameras)]
        event = an_event(number, camera, now - 30.0 * (num_events - number))
        if camera in kept:
            rows.append(_to_row(replace(event, jpeg_path=kept[camera].jpeg_path)))
        else:
            kept[camera] = store.add(event, with_note(picture(number, number), Cut(0, 0, *SIZE)))
    if rows:
        with store._engine.begin() as connection:  # a row at a time, each safe on disk, would take minutes
            connection.execute(EVENTS.insert(), rows)

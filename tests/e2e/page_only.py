"""The page alone, in a process of its own: made-up cameras and events, a scripted engine, nothing that computes.

`python -m tests.e2e.page_only --cameras 8 --events 10000` prints its address and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from PIL import Image, ImageDraw

from camera_sources.base import SourceState, SourceStatus
from pipeline.events import Box, Event, EventStatus, Reason, Track
from pipeline.feed import CameraChanged, FrameSeen
from pipeline.picture_note import Cut, with_note
from pipeline.schema import EVENTS
from pipeline.store import EventStore, _to_row
from tests.e2e.scripted_cameras import scripted_cameras
from tests.unit.pipeline.scripted_server import ScriptedServer, Words
from tests.unit.ui.scripted_engine import ScriptedEngine, a_step
from ui.web.board import MAX_CARDS, Board
from ui.web.engine_link import EngineLink
from ui.web.password import hash_password
from ui.web.shares import ShareMeter
from ui.web.site import build_server, build_site

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


async def play(board: Board, cameras: list[str], engine: ScriptedEngine) -> None:
    """Pictures and steps, ten a second; the last camera of several is down."""
    reels = [[picture(index, seq) for seq in range(40)] for index in range(len(cameras))]
    for seq in range(10**9):
        for index, camera in enumerate(cameras):
            if camera not in board.cameras:  # somebody removed it
                continue
            if len(cameras) > 1 and index == len(cameras) - 1:
                board.take(CameraChanged(camera, SourceStatus(SourceState.DOWN, "connection refused"), 0.0))
                continue
            board.take(CameraChanged(camera, SourceStatus(SourceState.LIVE), 5.0))
            now = time.monotonic()
            board.take(FrameSeen(camera, seq, *SIZE, reels[index][seq % 40], (track(seq % 40),), now - 0.12))
        busy = seq % 30 < 4
        step = a_step(seq, elapsed_ms=80.0 if busy else 22.0, prefill_tokens=60 if busy else 0, encoder_slices=busy)
        engine.steps = [*engine.steps[-400:], step]
        await asyncio.sleep(0.1)


async def serve(arguments: argparse.Namespace, data_dir: Path) -> None:
    """Until standard input ends."""
    cameras = ["yard", "door", "gate", "hall", "lane", "roof", "dock", "shed"][: arguments.cameras]
    store = EventStore(data_dir)
    fill(store, cameras, arguments.events)
    board = Board(cameras)
    board.restore(store.recent(MAX_CARDS))
    async with ScriptedEngine() as scripted, ScriptedServer([Words(("A ", "man ", "with ", "a ", "dog."))]) as talker:
        engine = EngineLink(scripted.url, is_own=True)
        client = AsyncOpenAI(base_url=talker.url, api_key="none", max_retries=0)
        meter = ShareMeter()
        password_hash = hash_password(arguments.password) if arguments.password else None
        site = build_site(
            board,
            store,
            engine,
            client,
            None,
            meter=meter,
            password_hash=password_hash,
            routes=[scripted_cameras(board)],
        )
        server = build_server(site, "127.0.0.1", arguments.port)
        tasks = [asyncio.create_task(engine.follow()), asyncio.create_task(play(board, cameras, scripted))]
        tasks.append(asyncio.create_task(meter.follow()))
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn offers a flag, not an event
            await asyncio.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        await engine.close()
        store.close()


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cameras", type=int, default=1)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--password", default="")
    parser.add_argument("--port", type=int, default=0)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(serve(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()

"""The page alone, in a process of its own: made-up cameras and events, a scripted engine, nothing that computes.

`python -m tests.e2e.page_only --cameras 8 --events 10000` prints its address and serves until its standard input ends;
a line of input is a scene to change to (see `stage`), and is repeated when that is done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from openai import AsyncOpenAI

from camera_sources.base import SourceState, SourceStatus
from pipeline.roster import Roster
from pipeline.settings.models import CameraSettings
from pipeline.status import PipelineReading
from pipeline.store import EventStore
from tests.e2e.scripted_cameras import ScriptedCameras
from tests.e2e.scripted_site import fill
from tests.e2e.stage import ANSWER, LIVE, Stage
from tests.unit.pipeline.scripted_server import ScriptedServer
from tests.unit.ui.scripted_engine import ScriptedEngine
from ui.web.board import MAX_CARDS, Board
from ui.web.camera_routes import build_camera_routes
from ui.web.engine_link import EngineLink
from ui.web.password import hash_password
from ui.web.shares import ShareMeter
from ui.web.site import build_server, build_site

NAMES = ("yard", "door", "gate", "hall", "lane", "roof", "dock", "shed")


async def serve(arguments: argparse.Namespace, data_dir: Path) -> None:
    """Until standard input ends. The last camera of several is down."""
    cameras: list[str] = list(NAMES[: arguments.cameras])
    store = EventStore(data_dir)
    fill(store, cameras, arguments.events)
    board = Board(cameras)
    board.restore(store.recent(MAX_CARDS))
    async with AsyncExitStack() as running:
        scripted = await running.enter_async_context(ScriptedEngine())
        talker = await running.enter_async_context(ScriptedServer([ANSWER]))
        talker.port = int(talker.url.split(":")[2].split("/")[0])  # the same when it comes back
        engine = EngineLink(scripted.url, is_own=True)
        watched = ScriptedCameras(board, dict.fromkeys(cameras, LIVE))
        if len(cameras) > 1:
            watched.statuses[cameras[-1]] = SourceStatus(SourceState.DOWN, "connection refused")
        stage = Stage(board, store, engine, scripted, talker, running, watched)
        roster = Roster(watched, [CameraSettings(name=name, source=f"rtsp://{name}/live") for name in cameras], None)
        client = AsyncOpenAI(base_url=talker.url, api_key="none", max_retries=0)
        meter = ShareMeter()
        site = build_site(
            board,
            store,
            engine,
            client,
            None,
            meter=meter,
            password_hash=hash_password(arguments.password) if arguments.password else None,
            routes=[build_camera_routes(roster, lambda: PipelineReading((), {}, None))],
        )
        server = build_server(site, "127.0.0.1", arguments.port)
        tasks = [asyncio.create_task(part) for part in (engine.follow(), stage.play(), meter.follow())]
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn offers a flag, not an event
            await asyncio.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
        while scene := (await asyncio.to_thread(sys.stdin.readline)).strip():
            await stage.show(scene)
            print(scene, flush=True)
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

"""The app's life: store, pipeline, board, engine link and page, begun in order and ended in order on one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack

import uvicorn
from openai import AsyncOpenAI

from pipeline.config import PipelineConfig, RetryConfig
from pipeline.feed import Feed
from pipeline.retention import keep_tidy
from pipeline.roster import Roster
from pipeline.settings import document
from pipeline.settings.models import CameraSettings
from pipeline.store import EventStore
from pipeline.wall_clock import WallClock
from pipeline.worker import Pipeline, PipelineError
from ui.commands.app_settings import AppSettings
from ui.errors import say
from ui.web.board import MAX_CARDS, Board
from ui.web.camera_routes import build_camera_routes
from ui.web.engine_link import EngineLink
from ui.web.shares import ShareMeter
from ui.web.site import build_server, build_site

BROKEN = 70
"""Exit status when the pipeline broke: a fresh process should take over."""
FEED_SIZE = 1024
CHAT_TIMEOUT_S = 120.0


async def serve_live(settings: AppSettings, feed: Feed) -> int:
    """Run everything until SIGTERM or SIGINT, with its news in `feed`; returns the exit status.

    Raises `StoreError`, `DetectorError` or `SourceError` for what cannot work, before the page is up.
    """
    async with AsyncExitStack() as stack:
        store = EventStore(settings.data_dir)
        stack.callback(store.close)
        cameras = cameras_of(settings)
        board = Board(camera.name for camera in cameras)
        kept = store.recent(MAX_CARDS)
        board.restore(kept)
        clock = WallClock(kept[0].t_wall if kept else None)  # before the pipeline keeps events by this very clock
        news = stack.enter_context(feed.subscribe(FEED_SIZE))
        engine = EngineLink(settings.base_url, settings.api_key, is_own=settings.is_own_engine)
        stack.push_async_callback(engine.close)
        pipeline = Pipeline(
            _pipeline_config(settings),
            [camera.to_config() for camera in cameras],
            store=store,
            feed=feed,
            ready=engine.until_answering,
            patient=settings.config_path is not None,
        )
        await pipeline.start()
        stack.push_async_callback(pipeline.stop)
        _say_threads()
        client = AsyncOpenAI(
            base_url=settings.base_url, api_key=settings.api_key or "none", max_retries=0, timeout=CHAT_TIMEOUT_S
        )
        stack.push_async_callback(client.close)
        meter = ShareMeter()
        site = build_site(
            board,
            store,
            engine,
            client,
            settings.model,
            meter=meter,
            password_hash=settings.ui_password_hash,
            routes=[build_camera_routes(Roster(pipeline, cameras, settings.config_path), pipeline.status)],
        )
        server = build_server(site, settings.ui_host, settings.ui_port)
        beside = [
            board.follow(news),
            engine.follow(),
            meter.follow(),
            pipeline.wait_broken(),
            keep_tidy(store, settings.retention, clock),
        ]
        return await _serve(server, [asyncio.create_task(part) for part in beside])


async def _serve(server: uvicorn.Server, beside: list[asyncio.Task[None]]) -> int:
    """Serve the page until told to stop, or until one of the tasks `beside` it fails."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        # The server installs handlers of its own; these take over before and after it, so that the rest ends in order.
        asyncio.get_running_loop().add_signal_handler(signum, server.handle_exit, signum, None)
    serving = asyncio.create_task(server.serve())
    await asyncio.wait({serving, *beside}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    for task in beside:
        task.cancel()
    for outcome in await asyncio.gather(serving, *beside, return_exceptions=True):
        if isinstance(outcome, PipelineError):
            print(say(outcome), file=sys.stderr)  # noqa: T201 - the supervisor relays it
            return BROKEN
        if isinstance(outcome, Exception):
            raise outcome
    return 0


def cameras_of(settings: AppSettings) -> tuple[CameraSettings, ...]:
    """The cameras to begin with: the file's as it is now, or the command line's. Raises `SettingsError`."""
    if settings.config_path is not None:
        return document.read(settings.config_path).settings.cameras
    # The command line's were checked there, by its own rules for names.
    return tuple(
        CameraSettings.model_construct(name=camera.camera_id, source=camera.source, loop=camera.loop)
        for camera in settings.cameras
    )


def _pipeline_config(settings: AppSettings) -> PipelineConfig:
    return PipelineConfig(
        detector=settings.detector,
        base_url=settings.base_url,
        model=settings.model,
        api_key=settings.api_key,
        cache_dir=settings.cache_dir,
        retry=RetryConfig(until_deadline=settings.is_own_engine),
    )


def _say_threads() -> None:
    torch = sys.modules.get("torch")  # loaded by the detector, if by anybody
    num_threads = torch.get_num_threads() if torch is not None else 0
    print(f"detector threads: {num_threads}, niceness: {os.nice(0)}", file=sys.stderr)  # noqa: T201

"""`watchword watch`: cameras to JSON lines, without a page."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pipeline.config import CameraConfig, PipelineConfig, RetryConfig
from pipeline.jsonl import STDOUT, JsonlWriter
from pipeline.supervisor import Supervisor, answers
from pipeline.weights import find_weights
from ui.commands.assets import ensure_assets
from ui.commands.checks import check_backend, check_engine
from ui.commands.children import backend_child
from ui.commands.config_file import ConfigFile, cameras_of, read_config, with_config
from ui.commands.engine_flags import OF_SERVERS, default, with_engine_flags
from ui.commands.machine import free_port
from ui.commands.news import News
from ui.commands.options import Detector, OtherEngine
from ui.commands.reading import Reading
from ui.commands.sources import KINDS, check_cameras, to_cameras
from ui.commands.terminal import Verbose, echo_for, until_signal
from ui.errors import UsageError

if TYPE_CHECKING:
    from pipeline.feed import FeedItem, Subscription
    from pipeline.settings.models import Settings
    from pipeline.worker import Pipeline

HOST = "127.0.0.1"
INTERRUPTED = 130
ASK_AGAIN_S = 0.3


@with_engine_flags(without=OF_SERVERS)
def watch(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help=KINDS, show_default=False),
    ] = None,
    *,
    jsonl: Annotated[
        str,
        typer.Option(
            metavar="OUT", help="File that gets one JSON line per event; - is standard output.", show_default=False
        ),
    ],
    config_file: ConfigFile = None,
    base_url: OtherEngine = None,
    no_realtime: Annotated[
        bool,
        typer.Option(
            "--no-realtime",
            help=f"Read files as fast as captions allow; nothing is skipped. {default('at their own pace')}",
        ),
    ] = False,
    detector: Detector = None,
    verbose: Verbose = False,
    engine: dict[str, Any],
) -> int:
    """Watch cameras or files and write every event as a JSON line.

    Ends when every source has ended, or with Ctrl-C.
    """
    written = read_config(config_file, sources)
    base_url, detector = with_config(written, engine, base_url, detector)
    config = check_engine(engine, base_url)
    cameras = _cameras(sources, written, realtime=not no_realtime)
    cache_dir = config.cache_dir.expanduser()
    if detector:
        find_weights(detector, cache_dir)
    if base_url:
        check_backend(base_url, model=engine.get("model"), api_key=config.api_key)
    check_cameras(cameras)
    own_model = base_url is None and config.model == "demo"
    assets = ensure_assets(cache_dir, model=own_model, detector=detector is None, clip=False)
    port = free_port(HOST)
    pipeline = PipelineConfig(
        detector=detector or str(assets.detector),
        base_url=base_url or f"http://{HOST}:{port}/v1",
        model=engine.get("model") if base_url else None,
        api_key=config.api_key,
        cache_dir=cache_dir,
        retry=RetryConfig(until_deadline=base_url is None),
    )
    os.environ["OMP_NUM_THREADS"] = "1"  # the detector's, in this process; the engine gets its own
    echo = echo_for((camera.source for camera in cameras), pipeline.api_key, verbose=verbose)
    private = written.variables if written else ()
    supervisor = None if base_url else Supervisor([backend_child(engine, HOST, port, private)], echo=echo)
    # Bars and JSON lines on one terminal would overwrite each other.
    reading = Reading(Console(stderr=True), shown=no_realtime and not (jsonl == STDOUT and sys.stdout.isatty()))
    news = News(reading.say)
    with reading:
        ended = asyncio.run(until_signal(_watch(supervisor, pipeline, cameras, jsonl, (news.take, reading.take))))
    typer.echo(f"{'Stopped: ' if ended is None else ''}{news.summary(jsonl)}", err=True)
    return INTERRUPTED if ended is None else ended


def _cameras(sources: list[str] | None, written: Settings | None, *, realtime: bool) -> tuple[CameraConfig, ...]:
    """The cameras of the command line or of the file, of which there must be one. Raises `UsageError`."""
    if written is None:
        cameras = to_cameras(sources or (), realtime=realtime)
    else:
        cameras = tuple(replace(camera, realtime=realtime) for camera in cameras_of(written))
    if not cameras:
        raise UsageError("no camera to watch: name one as SOURCE or in --config; see watchword watch --help")
    return cameras


async def _watch(
    supervisor: Supervisor | None,
    config: PipelineConfig,
    cameras: Sequence[CameraConfig],
    jsonl: str,
    listeners: Sequence[Callable[[FeedItem], None]],
) -> int:
    """Run the pipeline to the end of its sources, beside a backend of our own if `supervisor` keeps one.

    `listeners` get all the news.
    """
    from pipeline.feed import Feed
    from pipeline.retry import at_once
    from pipeline.worker import Pipeline

    async with AsyncExitStack() as stack:
        writer = JsonlWriter(jsonl)
        stack.callback(writer.close)
        if supervisor is not None:
            await stack.enter_async_context(supervisor)
            await supervisor.ready()
        feed = Feed()
        news = feed.subscribe()
        telling = asyncio.create_task(_tell(news, listeners))
        ready = at_once if supervisor is None else partial(_until_answering, config.base_url)
        pipeline = Pipeline(config, cameras, store=None, feed=feed, jsonl=writer, ready=ready)
        stack.push_async_callback(_end, pipeline, news, telling)
        await pipeline.start()
        await _ended(pipeline, supervisor)
    return 0


async def _until_answering(base_url: str) -> None:
    """Wait for the engine of our own, which the supervisor starts again if it died."""
    while not await answers(base_url.removesuffix("/v1") + "/health"):  # noqa: ASYNC110 - it is in another process
        await asyncio.sleep(ASK_AGAIN_S)


async def _ended(pipeline: Pipeline, supervisor: Supervisor | None) -> None:
    """Wait for the end of every source and event; raises what makes that impossible."""
    ended = asyncio.create_task(pipeline.wait_ended())
    failed = asyncio.create_task(supervisor.failed()) if supervisor is not None else None
    try:
        await asyncio.wait([task for task in (ended, failed) if task], return_when=asyncio.FIRST_COMPLETED)
        if failed is not None and failed.done():
            raise failed.result()
        await ended
    finally:
        ended.cancel()
        if failed is not None:
            failed.cancel()


async def _end(pipeline: Pipeline, news: Subscription, telling: asyncio.Task[None]) -> None:
    """Stop the pipeline, then let the last events be told."""
    await pipeline.stop()
    news.close()
    await telling


async def _tell(news: Subscription, listeners: Sequence[Callable[[FeedItem], None]]) -> None:
    async for item in news:
        for listener in listeners:
            listener(item)

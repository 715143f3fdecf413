"""`watchword run`: backend, cameras and page together, kept running until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.config import EngineConfig
from pipeline.supervisor import Child, Echo, Supervisor
from ui.commands.app_settings import AppSettings
from ui.commands.assets import ensure_assets
from ui.commands.children import app_child, backend_child
from ui.commands.engine_flags import default, with_engine_flags
from ui.commands.machine import free_port, reachable, require_free
from ui.commands.sources import given_sources, to_cameras
from ui.commands.terminal import echo_for, until_signal
from ui.errors import UsageError

DATA_DIR = "~/.local/share/watchword"
NOT_THE_ENGINES = frozenset({"model", "api_key", "cache_dir"})
"""Flags that make sense with another backend, too."""


@with_engine_flags()
def run(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE…",
            help="RTSP URLs, video files, folders of images or webcam numbers. Also read from SOURCE; without either, "
            "the demo clip, looped.",
            show_default=False,
        ),
    ] = None,
    *,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=f"Another OpenAI-compatible backend, ending in /v1; starts no engine. {default('our own')}",
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS",
            help=f"Ultralytics weights, such as yolo26n.pt. Also read from DETECTOR. {default('the packaged yolov8n')}",
        ),
    ] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Start video files and folders over at their end.")] = False,
    ui_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the page.")] = "127.0.0.1",
    ui_port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="Port of the page.")] = 8080,
    data_dir: Annotated[Path, typer.Option(metavar="PATH", help="Where events and their pictures are kept.")] = Path(
        DATA_DIR
    ),
    engine: dict[str, Any],
) -> int:
    """Watch cameras on a page, with captions and chat from one engine.

    MODEL in the environment stands for --model.
    """
    if "model" not in engine and os.environ.get("MODEL"):
        engine["model"] = os.environ["MODEL"]
    config = check_engine(engine, base_url)
    named = given_sources(sources)
    cameras = to_cameras(named, loop=loop)
    require_free(ui_host, ui_port, "--ui-port")
    port = config.port or free_port(config.host)
    if base_url is None:
        require_free(config.host, port, "--port")
    detector = detector or os.environ.get("DETECTOR") or None
    assets = ensure_assets(
        config.cache_dir.expanduser(),
        model=base_url is None and config.model == "demo",
        detector=detector is None,
        clip=not named,
    )
    if assets.clip:
        cameras = to_cameras([str(assets.clip)], loop=True)
    settings = AppSettings(
        cameras=cameras,
        detector=detector or str(assets.detector),
        base_url=base_url or f"http://{reachable(config.host)}:{port}/v1",
        model=engine.get("model") if base_url else None,
        api_key=config.api_key or os.environ.get("WATCHWORD_API_KEY"),
        ui_host=ui_host,
        ui_port=ui_port,
        data_dir=data_dir.expanduser(),
        cache_dir=config.cache_dir.expanduser(),
    )
    children = [app_child(settings)]
    if base_url is None:
        children.insert(0, backend_child(engine, config.host, port))
    page = f"http://{reachable(ui_host)}:{ui_port}"
    # The page is the one address to open, so the engine's announcement of its own is left out.
    echo = echo_for((camera.source for camera in cameras), settings.api_key, but=settings.base_url)
    return asyncio.run(until_signal(_keep(children, echo, page))) or 0


def check_engine(engine: dict[str, Any], base_url: str | None) -> EngineConfig:
    """Check the engine's flags before anything is loaded or downloaded."""
    if base_url is not None and (extra := sorted(engine.keys() - NOT_THE_ENGINES)):
        raise UsageError(
            f"--{extra[0].replace('_', '-')} is a setting of our own engine, and --base-url asks for another: drop one"
        )
    return EngineConfig(**engine)


async def _keep(children: list[Child], echo: Echo, page: str) -> int:
    """Keep the children running until cancelled; raises `ChildFailed` when that cannot be."""
    async with Supervisor(children, echo=echo) as supervisor:
        await supervisor.ready()
        typer.echo(f"Watchword is at {page} (Ctrl-C stops it)")
        raise await supervisor.failed()

"""`watchword run`: backend, cameras and page together, kept running until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camera_sources.base import SourceError
from pipeline.child import Child
from pipeline.config import CameraConfig, RetentionConfig
from pipeline.supervisor import Echo, Supervisor
from pipeline.weights import find_weights
from ui.commands.app_settings import AppSettings
from ui.commands.assets import ensure_assets
from ui.commands.checks import check_backend, check_engine
from ui.commands.children import DRAIN_S, app_child, backend_child
from ui.commands.config_file import ConfigFile, cameras_of, read_config, with_config
from ui.commands.engine_flags import default, with_engine_flags
from ui.commands.machine import free_port, reachable, require_free
from ui.commands.options import DATA_DIR, DataDir, Detector, OtherEngine
from ui.commands.page_password import page_password_hash
from ui.commands.sources import KINDS, check_cameras, given_sources, to_cameras
from ui.commands.terminal import Verbose, echo_for, until_signal
from ui.errors import UsageError, say

if TYPE_CHECKING:
    from pipeline.settings.models import Settings

UI_HOST, UI_PORT = "127.0.0.1", 8080


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE",
        help=f"{KINDS} Also read from SOURCE in the environment, one a line; without either, the demo clip, looped.",
        show_default=False,
    ),
]
UiHost = Annotated[str | None, typer.Option(metavar="ADDRESS", help=f"Address of the page. {default(UI_HOST)}")]
UiPort = Annotated[
    int | None, typer.Option(metavar="PORT", min=1, max=65535, help=f"Port of the page. {default(str(UI_PORT))}")
]
UiPassword = Annotated[
    str | None,
    typer.Option(
        metavar="PASSWORD",
        envvar="WATCHWORD_UI_PASSWORD",
        show_envvar=False,
        help="Password of the page, required beyond this machine. Also read from WATCHWORD_UI_PASSWORD, which "
        f"keeps it out of the list of processes. {default('none')}",
        show_default=False,
    ),
]


@with_engine_flags(defaults={"drain_timeout_s": DRAIN_S})
def run(
    sources: Sources = None,
    *,
    config_file: ConfigFile = None,
    base_url: OtherEngine = None,
    detector: Detector = None,
    loop: Annotated[bool, typer.Option("--loop", help="Start video files and folders over at their end.")] = False,
    ui_host: UiHost = None,
    ui_port: UiPort = None,
    ui_password: UiPassword = None,
    data_dir: DataDir = None,
    verbose: Verbose = False,
    engine: dict[str, Any],
) -> int:
    """Watch cameras on a page, with captions and chat from one engine, until Ctrl-C.

    MODEL and DETECTOR in the environment stand for --model and --detector.
    """
    if "model" not in engine and os.environ.get("MODEL"):
        engine["model"] = os.environ["MODEL"]
    written = read_config(config_file, sources)
    base_url, detector = with_config(written, engine, base_url, detector or os.environ.get("DETECTOR") or None)
    ui_host, ui_port, data_dir = _places(written, ui_host, ui_port, data_dir)
    password_hash = page_password_hash(ui_host, ui_password)
    config = check_engine(engine, base_url)
    named = [] if written else given_sources(sources)
    cameras = to_cameras(named, loop=loop) if written is None else cameras_of(written)
    if detector:
        find_weights(detector, config.cache_dir)
    require_free(ui_host, ui_port, "--ui-port")
    port = config.port or free_port(config.host)
    if base_url is None:
        require_free(config.host, port, "--port")
    _check(cameras, starts_anyway=written is not None)
    assets = ensure_assets(
        config.cache_dir.expanduser(),
        model=base_url is None and config.model == "demo",
        detector=detector is None,
        clip=not named and written is None,
    )
    if assets.clip:
        cameras = to_cameras([str(assets.clip)], loop=True)
    settings = AppSettings(
        cameras=() if written else cameras,
        detector=detector or str(assets.detector),
        base_url=base_url or f"http://{reachable(config.host)}:{port}/v1",
        model=engine.get("model") if base_url else None,
        api_key=config.api_key,
        ui_host=ui_host,
        ui_port=ui_port,
        data_dir=data_dir,
        cache_dir=config.cache_dir.expanduser(),
        is_own_engine=base_url is None,
        ui_password_hash=password_hash,
        retention=RetentionConfig(written.retention.days, written.retention.max_gb) if written else RetentionConfig(),
        config_path=config_file.expanduser().resolve() if config_file else None,
    )
    variables = written.variables if written else ()
    children = [app_child(settings, variables)]
    if base_url is None:
        children.insert(0, backend_child(engine, config.host, port, variables))
    else:
        _tell_of_backend(settings)
    page = f"http://{reachable(ui_host)}:{ui_port}"
    echo = echo_for((camera.source for camera in cameras), settings.api_key, verbose=verbose)
    asyncio.run(until_signal(_keep(children, echo, page, settings)))
    typer.echo("Stopped.")
    return 0


def _places(
    written: Settings | None, host: str | None, port: int | None, data_dir: Path | None
) -> tuple[str, int, Path]:
    """Address and port of the page, and where events are kept: by flag, else by file, else the defaults."""
    page = written.page if written else None
    kept_in = data_dir or (written and written.data_dir) or Path(DATA_DIR)
    return host or (page and page.host) or UI_HOST, port or (page and page.port) or UI_PORT, kept_in.expanduser()


def _check(cameras: tuple[CameraConfig, ...], *, starts_anyway: bool) -> None:
    """Raise `SourceError` for a camera that cannot start, or say so if the others are to start all the same."""
    try:
        check_cameras(cameras)
    except SourceError as error:
        if not starts_anyway:
            raise
        typer.echo(f"watchword: {say(error)}. The cameras start all the same; this one is tried again.", err=True)


def _tell_of_backend(settings: AppSettings) -> None:
    """Say at once what is wrong with the backend; the page starts all the same, since it may come up later."""
    try:
        check_backend(settings.base_url, model=settings.model, api_key=settings.api_key)
    except UsageError as error:
        typer.echo(f"watchword: {say(error)}. The page starts all the same; captions and chat wait for it.", err=True)


async def _keep(children: list[Child], echo: Echo, page: str, settings: AppSettings) -> int:
    """Keep the children running until cancelled; raises `ChildFailed` when that cannot be."""
    from ui.commands.eyesight import blindness  # brings a client along, which `--help` need not wait for

    async with Supervisor(children, echo=echo) as supervisor:
        await supervisor.ready()
        typer.echo(f"Watchword is at {page} (Ctrl-C stops it)")
        if why := await blindness(settings.base_url, model=settings.model, api_key=settings.api_key):
            typer.echo(f"watchword: {why}", err=True)
        raise await supervisor.failed()

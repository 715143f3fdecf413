"""`watchword.yaml` on the command line: read before anything starts, its faults said with their lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.config import CameraConfig
from ui.commands.engine_flags import default
from ui.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.settings.models import Settings

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Cameras and settings from a file (see `watchword config example`); flags win over it. {default('none')}",
        show_default=False,
    ),
]


def read_config(path: Path | None, sources: Sequence[str] | None) -> Settings | None:
    """The settings of the file; None without one. Raises `UsageError` with its first fault, or if `sources` are named,
    too."""
    if path is None:
        return None
    if sources:
        raise UsageError("cameras are named in --config and on the command line: keep to one of them")
    from pipeline.settings.document import read
    from pipeline.settings.fault import SettingsError

    try:
        return read(path.expanduser()).settings
    except SettingsError as error:
        more = len(error.lines) - 1
        rest = f"; {more} more: watchword config check {path}" if more else ""
        raise UsageError(f"{error.lines[0]}{rest}") from None


def with_config(
    written: Settings | None, engine: dict[str, Any], base_url: str | None, detector: str | None
) -> tuple[str | None, str | None]:
    """(base URL, detector) as flags or else the file name them; model and key of the file go into `engine` likewise."""
    if written is None:
        return base_url, detector
    base_url = base_url or written.base_url
    if written.model is not None:
        engine.setdefault("model", written.model)
    if (key := written.key()) is not None:
        engine.setdefault("api_key", key)
    return base_url, detector or written.detector


def cameras_of(written: Settings) -> tuple[CameraConfig, ...]:
    """The file's cameras as the pipeline takes them."""
    return tuple(camera.to_config() for camera in written.cameras)

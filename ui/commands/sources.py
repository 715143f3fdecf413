"""From what a person names on the command line or in SOURCE to cameras with short names of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from camera_sources.open import open_source
from camera_sources.url import split_credentials
from pipeline.config import CameraConfig


def given_sources(arguments: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The sources on the command line, else the one in SOURCE (taken whole: paths may hold spaces), else none."""
    if arguments:
        return list(arguments)
    named = environment.get("SOURCE", "").strip()
    return [named] if named else []


def to_cameras(sources: Sequence[str], *, loop: bool = False, realtime: bool = True) -> tuple[CameraConfig, ...]:
    """One camera per source, each with a name unlike the others'. Raises `SourceError` for what cannot be a source."""
    cameras: list[CameraConfig] = []
    for source in sources:
        open_source(source, camera_id="check")  # not started: only what can be seen from here is checked
        name = _unlike(short_name(source), {camera.camera_id for camera in cameras})
        cameras.append(CameraConfig(name, source, loop=loop, realtime=realtime))
    return tuple(cameras)


def short_name(source: str) -> str:
    """What a person would call it: a stream's host, a file's or a folder's name, a webcam's number. No credentials."""
    source = source.strip()
    if "://" in source and not source.startswith("file:"):
        name = urlsplit(split_credentials(source)[0]).hostname or "stream"
    elif source.isdigit():
        name = f"webcam-{source}"
    else:
        path = Path(unquote(urlsplit(source).path) if source.startswith("file:") else source).expanduser()
        name = path.resolve().stem
    return re.sub(r"[^\w.\-]+", "-", name).strip("-") or "camera"


def _unlike(name: str, taken: set[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate

"""From what a person names on the command line or in SOURCE to cameras with short names of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from camera_sources.base import SourceError
from camera_sources.check import PROBLEM
from camera_sources.open import open_source
from camera_sources.url import split_credentials
from pipeline.config import CameraConfig
from ui.errors import UsageError

KINDS = "RTSP, RTMP or HTTP URLs, video files, folders of images or webcam numbers; NAME=SOURCE names a camera."

_NAMED = re.compile(r"([\w.\-]+)=(.+)", re.DOTALL)


def given_sources(arguments: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The sources on the command line, else those in SOURCE, one a line (paths may hold spaces), else none."""
    if arguments:
        return list(arguments)
    return [line.strip() for line in environment.get("SOURCE", "").splitlines() if line.strip()]


def to_cameras(sources: Iterable[str], *, loop: bool = False, realtime: bool = True) -> tuple[CameraConfig, ...]:
    """One camera per source, each with a name unlike the others': the one in `NAME=SOURCE`, else a short one.

    Raises `SourceError` for what cannot be a source, `UsageError` for a name that is given twice.
    """
    named = [split_name(source) for source in sources]
    given = [name for name, _ in named if name]
    if twice := sorted({name for name in given if given.count(name) > 1}):
        raise UsageError(f"two cameras are named {twice[0]}; give each a name of its own")
    cameras: list[CameraConfig] = []
    for name, source in named:
        open_source(source, camera_id="check")  # not started: what can be seen without opening it
        taken = {*given, *(camera.camera_id for camera in cameras)}
        cameras.append(CameraConfig(name or _unlike(short_name(source), taken), source, loop, realtime))
    return tuple(cameras)


def check_cameras(cameras: Iterable[CameraConfig]) -> None:
    """Raise `SourceError` for a file, folder or webcam that cannot be read, or where decoders cannot be loaded at all.

    That happens in a process of its own, which is gone when this returns; a network is not asked.
    """
    files = [camera.source for camera in cameras if "://" not in camera.source]
    command = [sys.executable, "-P", "-m", "camera_sources.check"]
    done = subprocess.run(command, input=json.dumps(files), capture_output=True, text=True, check=False)
    if done.returncode == PROBLEM:
        raise SourceError(done.stdout.strip())


def split_name(source: str) -> tuple[str | None, str]:
    """(the name, the source) of `NAME=SOURCE`; no name where a file of that whole name exists or none is given."""
    named = _NAMED.fullmatch(source.strip())
    if named is None or Path(source).expanduser().exists():
        return None, source
    return named[1], named[2]


def short_name(source: str) -> str:
    """What a person would call it: a stream's host and the end of its path, a file's or a folder's name, a webcam's
    number. No credentials."""
    source = source.strip()
    if "://" in source and not source.startswith("file:"):
        parts = urlsplit(split_credentials(source)[0])
        end = parts.path.rstrip("/").rpartition("/")[2]
        # Some cameras take user and password within the path, as `user=…&password=…`.
        name = "-".join(part for part in (parts.hostname or "stream", end if "=" not in end else "") if part)
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

"""From what a person types to a source: a stream's URL, a webcam's number, a video file, a folder of images."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from camera_sources.base import Source, SourceError
from camera_sources.url import redact
from camera_sources.video import VideoSource


def open_source(source: str, *, camera_id: str, loop: bool = False, realtime: bool = True) -> Source:
    """The source that `source` names, not started. Raises `SourceError`, one line without credentials.

    `loop` and `realtime` apply to files and folders; a live source is always as fast as it is.
    """
    source = source.strip()
    if not source:
        raise SourceError("the source is empty; give an RTSP URL, a video file, a folder of images or a webcam number")
    return VideoSource(path_of(source), camera_id=camera_id, loop=loop, realtime=realtime)


def path_of(source: str) -> Path:
    """The existing path that `source` names, as a path or as a `file:` URL. Raises `SourceError` if there is none."""
    path = Path(unquote(urlsplit(source).path) if source.startswith("file:") else source).expanduser()
    if not path.exists():
        raise SourceError(f"{redact(source)}: no such file or folder; check the path")
    return path

"""From what a person types to a source: a stream's URL, a webcam's number, a video file, a folder of images."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from camera_sources.base import Source, SourceError
from camera_sources.images import ImagesSource, is_image
from camera_sources.names import require_text
from camera_sources.rtsp import RtspSource
from camera_sources.url import redact
from camera_sources.video import VideoSource
from camera_sources.webcam import WebcamSource

_URL = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)
_WEBCAM = re.compile(r"(?:/dev/video)?(\d{1,3})")


def open_source(
    source: str, *, camera_id: str, loop: bool = False, realtime: bool = True, transport: str = "tcp"
) -> Source:
    """The source that `source` names, not started. Raises `SourceError`, one line without credentials.

    `loop` and `realtime` apply to files and folders; a live source is always as fast as it is. `transport` ("tcp" or
    "udp") applies to RTSP.
    """
    source = source.strip()
    if not source:
        raise SourceError("the source is empty; give an RTSP URL, a video file, a folder of images or a webcam number")
    require_text(source)
    if _URL.match(source) and not source.startswith("file:"):
        return RtspSource(source, camera_id=camera_id, transport=transport)
    if (webcam := _WEBCAM.fullmatch(source)) is not None:
        return WebcamSource(int(webcam[1]), camera_id=camera_id)
    path = _existing(source)
    if not path.is_dir() and not is_image(path):
        return VideoSource(path, camera_id=camera_id, loop=loop, realtime=realtime)
    return ImagesSource(path, camera_id=camera_id, loop=loop, realtime=realtime)


def _existing(source: str) -> Path:
    """The path that `source` names, as a path or as a `file:` URL. Raises `SourceError` if there is nothing."""
    path = Path(unquote(urlsplit(source).path) if source.startswith("file:") else source).expanduser()
    try:
        path.stat()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "not a path"
        raise SourceError(f"{redact(source)}: {problem.lower()}; check the path") from None
    return path

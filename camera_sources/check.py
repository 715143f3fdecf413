"""Looks at sources before anything is started: `python -m camera_sources.check` reads a JSON list of them on stdin.

A process of its own, because whoever asks may want to stay small, and decoders are large. OpenCV comes first, since all
pictures pass through it. It prints the first problem as one line and ends with status 2.
"""

from __future__ import annotations

import json
import sys

from camera_sources import cv
from camera_sources.base import SourceError
from camera_sources.open import open_source
from camera_sources.webcam import WebcamSource

PROBLEM = 2


def check_source(source: str) -> None:
    """Raise `SourceError` for what can be known at once: files and folders are opened, a network is not asked."""
    opened = open_source(source, camera_id="check")
    if isinstance(opened, WebcamSource):
        opened.require_device()
    elif not opened.is_live:
        try:
            opened.start()
        finally:
            opened.stop()


def main() -> int:
    """Check what standard input lists; the exit status."""
    try:
        cv.check()
        for source in json.load(sys.stdin):
            check_source(source)
    except SourceError as error:
        sys.stdout.write(f"{error}\n")
        return PROBLEM
    return 0


if __name__ == "__main__":
    sys.exit(main())

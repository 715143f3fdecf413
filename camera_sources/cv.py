"""OpenCV, imported when first needed and kept quiet: its logs print URLs with credentials."""

from __future__ import annotations

import importlib
import os
from typing import Any

from camera_sources.base import SourceError

FFMPEG_QUIET = -8
FFMPEG_INFO = 32


def import_cv2(ffmpeg_log_level: int = FFMPEG_QUIET) -> Any:
    """The `cv2` module, silenced. Raises `SourceError` with the cure where its system libraries are missing.

    Only a process whose stderr is captured and redacted may ask for more of ffmpeg's log than `FFMPEG_QUIET`.
    """
    os.environ["OPENCV_LOG_LEVEL"] = "SILENT"
    os.environ["OPENCV_FFMPEG_LOGLEVEL"] = str(ffmpeg_log_level)
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        raise SourceError(explain_import_error(error)) from None
    cv2.utils.logging.setLogLevel(
        cv2.utils.logging.LOG_LEVEL_SILENT
    )  # somebody else may have imported it before the environment said so
    return cv2


def check() -> None:
    """Raise `SourceError`, one line with the cure, unless OpenCV works here."""
    import_cv2()


def explain_import_error(error: ImportError) -> str:
    """What to do when `import cv2` fails, in one line."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "libGL" in text or "libgthread" in text or "libglib" in text:
        return (
            f"OpenCV cannot start: {text}. Install the library (Debian/Ubuntu: apt-get install libgl1 libglib2.0-0) "
            "or use the build without windows (pip install opencv-python-headless)"
        )
    return f"OpenCV cannot start: {text}. Install it with: pip install opencv-python-headless"

"""Names of files as text. A system may hold names that are no text; Python keeps them, decoders and outputs do not."""

from __future__ import annotations

import os

from camera_sources.base import SourceError


def printable(name: str) -> str:
    """`name` as text that can be written anywhere: bytes that are no UTF-8 as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def require_text(name: str) -> None:
    """Raise `SourceError` unless `name` is valid text: OpenCV crashes on any other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{printable(name)}: the name is not valid UTF-8 text; rename it") from None

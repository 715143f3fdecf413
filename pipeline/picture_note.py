"""Where in its frame a picture was cut, written into the picture itself as a JPEG comment.

So an event's boxes, which are in pixels of the frame, can be drawn on the cut wherever it goes, an export included.
"""

from __future__ import annotations

import json
import struct
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

_START, _COMMENT = b"\xff\xd8", b"\xff\xfe"
_KEY = "watchword-cut"


@dataclass(frozen=True, slots=True)
class Cut:
    """Pixels [left, left + width) x [top, top + height) of a frame."""

    left: int
    top: int
    width: int
    height: int


def cut_of(frame: NDArray[np.uint8], view: NDArray[np.uint8]) -> Cut:
    """Where `view` [h, w, 3] lies in `frame` [H, W, 3]. It must be a slice of it that shares its memory."""
    offset = view.__array_interface__["data"][0] - frame.__array_interface__["data"][0]
    top, rest = divmod(offset, frame.strides[0])
    left = rest // frame.strides[1]
    height, width = view.shape[:2]
    if not (0 <= top <= frame.shape[0] - height and 0 <= left <= frame.shape[1] - width):
        raise ValueError("the cut is no part of the frame")
    return Cut(left, top, width, height)


def with_note(jpeg: bytes, cut: Cut) -> bytes:
    """`jpeg` with the comment; its pixels stay what they are."""
    if not jpeg.startswith(_START):
        raise ValueError("no JPEG")
    note = json.dumps({_KEY: astuple(cut)}).encode()
    return _START + _COMMENT + struct.pack(">H", len(note) + 2) + note + jpeg[2:]


def read_note(jpeg: bytes) -> Cut | None:
    """What `with_note` wrote; None for a picture without it."""
    if jpeg[:4] != _START + _COMMENT or len(jpeg) < 6:
        return None
    (size,) = struct.unpack_from(">H", jpeg, 4)
    try:
        left, top, width, height = (int(value) for value in json.loads(jpeg[6 : 4 + size])[_KEY])
    except (ValueError, KeyError, TypeError):
        return None
    return Cut(left, top, width, height) if width > 0 and height > 0 else None

"""Which decoded frames are damaged: ffmpeg delivers them all, patched up, and tells of it in its log alone.

A frame with a hole (lost packets) is filled from its neighbours, and those after it build on it until the next key
frame. Knows text and frame types; nothing of streams.
"""

from __future__ import annotations

import contextlib
import os
import re

DAMAGED_S = 10.0  # a stream without key frames (they may be spread over many frames) is repaired by then
_INFO = b"[OPENCV:FFMPEG:32]"
_SIGNS = re.compile(rb"concealing \d|error while decoding|rtp: missed|frame num gap|could not find ref|corrupt", re.I)


class DecoderLog:
    """What libraries print to stdout and stderr, from now on until `close`, taken in between frames.

    The descriptors lead into a pipe that is never waited for: what does not fit is lost.
    """

    def __init__(self) -> None:
        self._stderr = os.dup(2)
        self._reading, writing = os.pipe()
        for end in (self._reading, writing):
            os.set_blocking(end, False)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)

    def take(self) -> bytes:
        """Everything printed since the last call; warnings and worse are passed on to the real stderr."""
        printed = b""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reading, 65536):
                printed += data
        serious = b"".join(line for line in printed.splitlines(keepends=True) if not line.startswith(_INFO))
        if serious:
            os.write(self._stderr, serious)
        return printed

    def close(self) -> None:
        """Pass on the rest, and let the real stderr be both again."""
        self.take()
        os.dup2(self._stderr, 2)
        os.dup2(2, 1)
        os.close(self._stderr)
        os.close(self._reading)


class Damage:
    """Follows one stream from frame to frame."""

    def __init__(self) -> None:
        self._t_began: float | None = None

    def hits(self, printed: bytes, is_key: bool, t_mono: float) -> bool:
        """Whether the frame decoded at `t_mono` is damaged, after which ffmpeg had `printed` this."""
        if _SIGNS.search(printed):
            self._t_began = t_mono if self._t_began is None else self._t_began
        elif is_key:
            self._t_began = None
        return self._t_began is not None and t_mono - self._t_began < DAMAGED_S

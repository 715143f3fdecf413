"""Pictures handed from a capture process to its parent through shared memory. Knows nothing of cameras.

The memory is an anonymous file whose descriptor both processes hold: it has no name, so nothing is left behind however
either of them dies. Each picture has a stamp before it, odd while it is being written (a seqlock): a reader copies
first and then looks whether the stamp is still the one it was told.

    [stamp | picture] [stamp | picture] [stamp | picture]   <- three slots, written in turn
    [stamp |     larger picture     ] ...                   <- a larger size gets three new slots behind the old ones
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

import numpy as np
from numpy.typing import NDArray

NUM_SLOTS = 3
_HEADER_BYTES = 64
_STAMP = struct.Struct("=Q")


def create_memory() -> int:
    """The descriptor of new, empty, anonymous shared memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("watchword-frames")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class FrameWriter:
    """The only writer of one shared memory."""

    def __init__(self, memory_fd: int) -> None:
        self._fd = memory_fd
        self._map: mmap.mmap | None = None
        self._first_offset = 0
        self._capacity = 0
        self._num_written = 0

    def begin(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """The memory to draw the next picture into, of `shape`; invalidates the oldest one."""
        num_bytes = shape[0] * shape[1] * shape[2]
        if num_bytes > self._capacity:
            self._grow(num_bytes)
        assert self._map is not None
        self._stamp(2 * self._num_written + 1)
        return np.frombuffer(self._map, np.uint8, num_bytes, self._offset() + _HEADER_BYTES).reshape(shape)

    def commit(self) -> tuple[int, int]:
        """The picture begun is complete: its (offset, stamp), for `FrameReader.copy`."""
        offset, stamp = self._offset(), 2 * self._num_written + 2
        self._stamp(stamp)
        self._num_written += 1
        return offset, stamp

    def _offset(self) -> int:
        return self._first_offset + self._num_written % NUM_SLOTS * (_HEADER_BYTES + self._capacity)

    def _stamp(self, value: int) -> None:
        assert self._map is not None
        _STAMP.pack_into(self._map, self._offset(), value)

    def _grow(self, num_bytes: int) -> None:
        self._first_offset += NUM_SLOTS * (_HEADER_BYTES + self._capacity) if self._map is not None else 0
        self._capacity = -(-num_bytes // 64) * 64
        size = self._first_offset + NUM_SLOTS * (_HEADER_BYTES + self._capacity)
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)


class FrameReader:
    """One reader of a shared memory. Mappings live as long as somebody copies from them."""

    def __init__(self, memory_fd: int) -> None:
        self._fd = memory_fd
        self._map: mmap.mmap | None = None

    def mapping(self, offset: int, shape: tuple[int, int, int]) -> mmap.mmap:
        """A mapping that reaches over the picture at `offset`; raises ValueError if the memory does not."""
        end = offset + _HEADER_BYTES + shape[0] * shape[1] * shape[2]
        if self._map is None or len(self._map) < end:
            size = os.fstat(self._fd).st_size
            if size < end or offset < 0:
                raise ValueError("a picture outside the shared memory")
            self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        return self._map


def copy_picture(mapping: mmap.mmap, offset: int, stamp: int, shape: tuple[int, int, int]) -> NDArray[np.uint8] | None:
    """The picture at `offset`; None if it was overwritten since it was stamped `stamp`, or meanwhile."""
    start = offset + _HEADER_BYTES
    image = np.frombuffer(mapping, np.uint8, shape[0] * shape[1] * shape[2], start).reshape(shape).copy()
    return image if _STAMP.unpack_from(mapping, offset)[0] == stamp else None

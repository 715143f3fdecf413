"""Bell: wakes an event loop from another thread without letting the interpreter go.

`call_soon_threadsafe` writes to a socket, and Python lets the interpreter go meanwhile: the loop's thread takes it, and
whoever rang stands still until all that was rung for is done. An engine would begin each step later by that. Here the
loop's thread wakes, too, but gets the interpreter when the ringing thread next leaves it, for its model. Linux only, as
`eventfd` is. Knows nothing of streams or tokens.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

_write = ctypes.PyDLL(None).write  # PyDLL keeps the interpreter where CDLL and os.write would let it go
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t

_ONE = (1).to_bytes(8, sys.byteorder)


class Bell:
    """One event loop's bell. `leave` and `ring` belong to any thread; made on the loop, by `bell_of`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        # It never blocks: its number would have to pass 2^64 first.
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The loop holds the bell while it is open, whoever may ring it holds it longer; the last to let go closes it.
        loop.add_reader(self._fd, self._answer)
        weakref.finalize(self, os.close, self._fd)

    def leave(self, call: Callable[[], None]) -> None:
        """A call for the loop to make once the bell is rung."""
        self._calls.append(call)

    def ring(self) -> None:
        """Have the loop make the calls that were left; a closed loop makes none."""
        _write(self._fd, _ONE, len(_ONE))

    def _answer(self) -> None:
        os.eventfd_read(self._fd)
        while self._calls:
            self._calls.popleft()()


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Bell]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    """The bell of `loop`, which runs on the calling thread; made at the first call."""
    with _lock:
        known = _bells.get(loop)
        bell = known() if known else None
        if bell is None:
            bell = Bell(loop)
            _bells[loop] = weakref.ref(bell)
        return bell

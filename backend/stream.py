"""TokenStream: the one bridge between the engine thread and asyncio.

The engine thread puts what it has to say and never waits for a reader: a stream is bounded by its request's
`max_tokens`, not by a queue size. Wake-ups are paid once per step and event loop (`Courier`), however many streams got
a token. Knows nothing of text, HTTP or scheduling.
"""

from __future__ import annotations

import asyncio
from collections import deque

from backend.bell import Bell
from backend.errors import EngineError
from backend.types.result import TokenEvent


class TokenStream:
    """The answers to one request, in order: an acceptance, then tokens, then exactly one end.

    The end is a TokenEvent with a `finish_reason`, or an EngineError, which is raised in the reader. One reader, on the
    loop whose `bell` it was made with. `put`, `accept` and `fail` belong to the engine and do not wake the reader by
    themselves; a Courier does.
    """

    def __init__(self, request_id: str, bell: Bell) -> None:
        self.request_id = request_id
        self.bell = bell
        self._accepted = False
        self._events: deque[TokenEvent] = deque()
        self._error: EngineError | None = None
        self._wakeup = asyncio.Event()

    def accept(self) -> None:
        """Engine side: the scheduler has taken the request."""
        self._accepted = True

    def put(self, event: TokenEvent) -> None:
        """Engine side: one more event."""
        self._events.append(event)

    def fail(self, error: EngineError) -> None:
        """Engine side: the request ends on an error, after whatever was put before."""
        self._error = error

    def wake(self) -> None:
        """Loop side: let the reader look again."""
        self._wakeup.set()

    async def admitted(self) -> None:
        """Wait until the scheduler has taken the request; raises its refusal."""
        while not (self._accepted or self._events or self._error):
            await self._wait()
        if self._error and not self._accepted:
            raise self._error

    async def take(self) -> tuple[TokenEvent, ...]:
        """All events since the last call, at least one; raises the error that ended the stream.

        A reader that fell behind gets what it missed in one go. Must not be called again after the end.
        """
        while not self._events:
            if self._error:
                raise self._error
            await self._wait()
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return tuple(taken)

    async def _wait(self) -> None:
        await self._wakeup.wait()
        self._wakeup.clear()


class Courier:
    """Collects the streams that one step has touched, then wakes each of their loops once."""

    def __init__(self) -> None:
        self._bells: dict[Bell, None] = {}

    def touch(self, stream: TokenStream) -> None:
        """`stream` has something new to read."""
        stream.bell.leave(stream.wake)
        self._bells[stream.bell] = None

    def send(self) -> None:
        """Wake all readers: one ring a loop. Any thread; a closed loop has no reader left."""
        for bell in self._bells:
            bell.ring()
        self._bells.clear()

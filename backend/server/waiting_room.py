"""Who answers while the model loads: every request gets a 503 that says what the start is doing, and since when.

Holds the port on a thread of its own until the server takes over; connections that come in between wait in the
socket's queue. Now and then the terminal is told, too, that a long phase is still going on.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from backend.server.errors import error_body
from backend.startup import Progress, Say, Startup

REMIND_S = 15.0
"""A phase that lasts this long is told of on the terminal, and again after as long."""
PATIENCE_S = 5.0
"""How long a client may take to send its request and to read the answer."""
RETRY_S = 2
LONGEST_HEAD = 65_536


class WaitingRoom:
    """`with WaitingRoom(...)` answers on `listener`, a listening socket that stays its caller's and open.

    `remind` gets the terminal's lines, from the room's own thread.
    """

    def __init__(self, listener: socket.socket, startup: Startup, remind: Say, remind_s: float = REMIND_S) -> None:
        self._listener = listener
        self._startup = startup
        self._remind = remind
        self._remind_s = remind_s
        self._begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="waiting-room", daemon=True)

    def __enter__(self) -> WaitingRoom:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RuntimeError):  # the thread has ended by itself
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(2.0)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        # A second name for the socket, so that closing the server leaves the first one open.
        server = await asyncio.start_server(self._receive, sock=self._listener.dup(), limit=LONGEST_HEAD)
        reminding = asyncio.create_task(self._keep_reminding())
        await self._over.wait()
        reminding.cancel()
        server.close()

    async def _keep_reminding(self) -> None:
        told_s = 0.0
        while True:
            await asyncio.sleep(self._remind_s / 10)
            now = self._startup.progress()
            told_s = min(told_s, now.phase_s)  # a new phase begins at zero
            if now.phase_s - told_s >= self._remind_s:
                told_s = now.phase_s
                self._remind(f"Still {now.phase}: {now.phase_s:.0f} s, {now.elapsed_s:.0f} s since the start")

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        try:
            # Cancelled is who is still here when the room closes: nothing more to do than to hang up.
            with suppress(*ended, asyncio.CancelledError):
                async with asyncio.timeout(PATIENCE_S):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(reply(self._startup.progress()))
                    await writer.drain()
                    writer.write_eof()
                    while await reader.read(LONGEST_HEAD):  # a body that nobody read would cost the client its answer
                        pass
        finally:
            writer.close()


def loading_body(progress: Progress) -> dict[str, Any]:
    """What is told of a start: times in seconds, and the API's error for clients that asked for something else."""
    message = (
        f"the model is being loaded ({progress.phase}, {progress.elapsed_s:.0f} s since the start); "
        "ask again in a moment"
    )
    return {
        "status": "loading",
        "phase": progress.phase.value,
        "detail": progress.detail,
        "phase_s": round(progress.phase_s, 1),
        "elapsed_s": round(progress.elapsed_s, 1),
        **error_body(message, "server_error", code="loading"),
    }


def reply(progress: Progress) -> bytes:
    """The whole HTTP answer."""
    body = json.dumps(loading_body(progress), ensure_ascii=False).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"retry-after: {RETRY_S}",
        "cache-control: no-store",
        "connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body

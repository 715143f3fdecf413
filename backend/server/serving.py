"""The uvicorn server of one Service: says when it is ready, ends answers before connections, notices a dead engine."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from backend.service import Service

IMPATIENT_S = 1.0
"""The longest drain after Ctrl-C: somebody waits for it."""

_FLUSH_S = 2
"""How long connections may take to send what they hold, once all answers have ended."""


_LOOK_AGAIN_S = 0.1


class Server(uvicorn.Server):
    """Serves until a signal, `end`, or `should_exit`; closes the Service on its way out."""

    def __init__(self, app: ASGIApp, service: Service, *, on_ready: Callable[[], None], drain_s: float) -> None:
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=_FLUSH_S
        )
        super().__init__(config)
        self.has_died = False
        self._num_signals = 0
        self._service = service
        self._on_ready = on_ready
        self._drain_s = drain_s

    def end(self) -> None:
        """The engine has died: stop serving. Any thread."""
        self.has_died = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: stop serving, soon where a person waits for it."""
        if sig == signal.SIGINT:
            self._drain_s = min(self._drain_s, IMPATIENT_S)
        self._num_signals += 1
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running answers end while whoever comes gets a 503, then cancel the rest and close all connections.

        A second signal ends the wait.
        """
        closing = asyncio.create_task(asyncio.to_thread(self._service.close, self._drain_s))
        while not (await asyncio.wait({closing}, timeout=_LOOK_AGAIN_S))[0]:
            if self._num_signals > 1:
                await asyncio.to_thread(self._service.close)
        await closing
        await super().shutdown(sockets)

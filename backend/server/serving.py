"""The uvicorn server of one Service: says when it is ready, ends answers before connections, notices a dead engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from backend.service import Service


class Server(uvicorn.Server):
    """Serves until a signal, `end`, or `should_exit`; closes the Service on its way out."""

    def __init__(self, app: ASGIApp, service: Service, *, on_ready: Callable[[], None], drain_s: float) -> None:
        # Connections are cut a little after the last answer was ended, so that its end can still be sent.
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=round(drain_s) + 2
        )
        super().__init__(config)
        self.has_died = False
        self._service = service
        self._on_ready = on_ready
        self._drain_s = drain_s

    def end(self) -> None:
        """The engine has died: stop serving. Any thread."""
        self.has_died = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, let running answers end, cancel the rest, and close all connections."""
        draining = asyncio.create_task(asyncio.to_thread(self._service.close, self._drain_s))
        await super().shutdown(sockets)
        await draining

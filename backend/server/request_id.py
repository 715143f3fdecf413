"""An id for each HTTP request: the client's own `X-Request-Id` or a new one, on the reply and in the log."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("watchword.server")

request_id: ContextVar[str] = ContextVar("request_id", default="-")
"""The id of the request that is being answered."""

_USABLE = re.compile(r"[\x21-\x7e]{1,128}")
"""What a client may call its request: nothing that could break a line of the log."""


class RequestIds:
    """Names every request, and logs those that were refused; answers log themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _USABLE.fullmatch(given) else uuid.uuid4().hex
        t_begin = time.monotonic()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = name
                if message["status"] >= HTTPStatus.BAD_REQUEST:
                    took_s = time.monotonic() - t_begin
                    # %r: a path may hold line breaks, percent-encoded.
                    path = scope["path"][:200]
                    log.info("%s %s %r status=%d total_s=%.3f", name, scope["method"], path, message["status"], took_s)
            await send(message)

        token = request_id.set(name)
        try:
            await self._app(scope, receive, named)
        finally:
            request_id.reset(token)

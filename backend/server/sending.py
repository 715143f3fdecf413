"""How a reply is sent, streamed or whole: the one place that answers for its end on every path, for every endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from backend.server.errors import CLIENT_GONE
from backend.server.event_stream import EventStream
from backend.server.intake import before_disconnect, done


class Sendable(Protocol):
    """A reply whose requests are in the engine."""

    async def admitted(self) -> None:
        """Wait until the engine has taken what must be there before the first header; raises its refusal."""
        ...

    async def collect(self) -> None:
        """Wait for the whole answer; raises what ends it early."""
        ...

    def whole(self) -> bytes | str:
        """The collected answer as a JSON body."""
        ...

    def close(self, why: str | None = None) -> None:
        """End it in the engine unless it has ended. Idempotent."""
        ...


async def send(http: Request, reply: Sendable, events: Callable[[], AsyncIterator[bytes]] | None) -> Response:
    """The response for `reply`: a stream of `events`, or, without them, the whole.

    Everything that can be refused is refused before the first header. `reply` is closed on every way out; a stream does
    so when it ends.
    """
    try:
        if events is not None:
            if await before_disconnect(http, done(reply.admitted())):
                return EventStream(events(), reply.close)
        elif await before_disconnect(http, done(reply.collect())):
            reply.close()
            return Response(reply.whole(), media_type="application/json")
    except BaseException as error:
        reply.close(type(error).__name__)
        raise
    reply.close("client gone")
    return Response(status_code=CLIENT_GONE)

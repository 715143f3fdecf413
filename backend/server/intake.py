"""What every endpoint does with a request first: reads its body within bounds, checks its model and class, and stops
working when its client has left. Knows no endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request

from backend.errors import Rejected
from backend.server.errors import ApiError
from backend.service import Service
from backend.types.request import RequestClass

T = TypeVar("T")

MAX_STOPS = 16


def check_model(service: Service, name: str) -> None:
    """Raise a 404 unless `name` is the model served here."""
    if name != service.model_name:
        message = f"the model {name[:200]!r} does not exist here; this server has {service.model_name!r}"
        raise ApiError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")


async def read_body(http: Request, max_bytes: int) -> bytes:
    """The request's body; raises a 413 as soon as it is known to be too large."""
    too_large = ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request body is larger than {max_bytes} bytes", code="body_too_large"
    )
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def before_disconnect(http: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns, run while watching the client; None if the client left first, and `work` was cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def done(work: Coroutine[Any, Any, None]) -> bool:
    """True once `work` has ended: for `before_disconnect`, whose None means that the client left."""
    await work
    return True


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def class_of(http: Request) -> RequestClass:
    """The request class a client asks for by header."""
    name = http.headers.get("x-request-class", RequestClass.INTERACTIVE)
    try:
        return RequestClass(name)
    except ValueError:
        choices = " or ".join(RequestClass)
        raise Rejected(f"X-Request-Class must be {choices}", param="X-Request-Class", code="invalid_value") from None


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a request; raises Rejected for too many, or for an empty one."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise Rejected(
            f"stop holds {len(stops)} strings; at most {MAX_STOPS} are taken", param="stop", code="invalid_value"
        )
    if "" in stops:
        raise Rejected("stop must not be empty text", param="stop", code="invalid_value")
    return stops

"""Who may use the server: whoever carries its key, and no web page of another site unless it is named.

Three ASGI layers that refuse before anything is read. Know no endpoint.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http import HTTPStatus
from ipaddress import ip_address

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.server.errors import ApiError, error_response

OPEN_PATHS = ("/health", "/ready")
"""Paths that need no key."""


class ApiKey:
    """Lets through what carries the key as a Bearer token, and whoever asks how the server is."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._carries_key(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            HTTPStatus.UNAUTHORIZED,
            "this server needs an API key: send it as `Authorization: Bearer <key>`",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(Request(scope), error)(scope, receive, send)

    def _carries_key(self, scope: Scope) -> bool:
        sent = _values(scope, b"authorization")
        return len(sent) == 1 and hmac.compare_digest(sent[0], self._expected)


class Origins:
    """Turns away requests of web pages whose origin is not among the allowed ones; `*` allows all.

    Without CORS a page cannot read an answer, but a browser still sends what needs no permission, such as a POST of
    plain text; then a page that somebody here has open could make the engine compute. Browsers name the origin of
    every such request, and no page of ours lives at this address; programs name none.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http" or "*" in self._allowed or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            HTTPStatus.FORBIDDEN,
            "web pages of this origin may not use this server; --allowed-origins names those that may",
            code="origin_not_allowed",
        )
        await error_response(Request(scope), error)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        return all(origin.decode("latin-1").lower() in self._allowed for origin in _values(scope, b"origin"))


class Hosts:
    """Turns away requests that call this machine by a name that is not its own: addresses and `localhost` are.

    A web page may have its own name lead to this machine (DNS rebinding); to a browser the server is then of the page's
    site, and what it says may be read without any origin being told. For servers that nobody needs a key for.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_own(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            HTTPStatus.FORBIDDEN,
            "this server has no key, so it answers to localhost and to addresses alone, not to names; "
            "use one of these, give it an --api-key, or name the site in --allowed-origins",
            code="host_not_allowed",
        )
        await error_response(Request(scope), error)(scope, receive, send)

    def _is_own(self, scope: Scope) -> bool:
        names = [_host_of(value.decode("latin-1")) for value in _values(scope, b"host")]
        return all(name in self._allowed or is_local_name(name) for name in names)


def is_local_name(name: str) -> bool:
    """Whether a host name cannot have been made to lead here: an address, or `localhost`."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _host_of(value: str) -> str:
    """The name in a Host header, without port and brackets."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]

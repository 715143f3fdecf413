"""Stands before everything the page serves: who may ask, from which page, and what browsers may do with the answer.

Applies to pages, pictures, the HTTP API, NiceGUI's own routes and every WebSocket alike. Three questions, in order:
does a request from a browser come from our own page (CSRF, cross-site WebSockets), is the address one that we are known
under (DNS rebinding, where there is no password), and is there a session (where there is one).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response

from ui.web.addresses import is_loopback
from ui.web.password import Attempts, Sessions, is_password

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "watchword_session"
OPEN_PATHS = frozenset({"/healthz", "/login", "/static/style.css", "/static/login.css", "/static/favicon.svg"})
MAX_LOGIN_BYTES = 16 * 1024
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    # NiceGUI compiles its templates in the browser and starts itself from an inline script, so both must be allowed;
    # nothing may come from, or go to, anywhere else.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """An ASGI application around `site`. `password_hash` None: whoever reaches the (loopback) address may ask."""

    def __init__(self, site: ASGIApp, password_hash: str | None, sessions: Sessions | None = None) -> None:
        self._site = site
        self._hash = password_hash
        self._sessions = sessions or Sessions()
        self._attempts = Attempts()
        self._key, self._proved = secrets.token_bytes(32), b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass, with the headers; answer the rest."""
        if scope["type"] not in ("http", "websocket"):
            await self._site(scope, receive, send)
            return
        refusal = await self._refusal(scope, Headers(scope=scope))
        if refusal is None:
            await self._site(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            await refusal(scope, receive, _with_headers(send))
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})

    async def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if _path(scope) == "/login" and scope["type"] == "http" and scope["method"] == "POST" and _is_long(headers):
            return _error(413, "That is no login.")
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if changes and not _is_own_page(headers):
            return _error(403, "The request comes from another site's page.")
        if self._hash is None:
            if is_loopback(_host_name(headers)):
                return None
            return _error(421, f"This address is not one of this machine's own: {headers.get('host', '')[:100]!r}.")
        if _path(scope) in OPEN_PATHS or self._sessions.holds(_session_id(headers)):
            return None
        if (bearer := _bearer(headers)) is not None:
            return await self._refuse_bearer(scope, bearer)
        if scope["type"] == "http" and "text/html" in headers.get("accept", ""):
            target = quote(_path(scope), safe="/")
            return RedirectResponse(f"/login?next={target}" if target != "/" else "/login", 303)
        return _error(401, "Log in first, or send the password as a bearer token.", {"WWW-Authenticate": "Bearer"})

    async def _refuse_bearer(self, scope: Scope, password: str) -> Response | None:
        # A program sends the password with every request: hashing it each time would be most of the work.
        digest = hmac.digest(self._key, password.encode("utf-8", "surrogatepass"), "sha256")
        if hmac.compare_digest(digest, self._proved):
            return None
        wait_s = await self.guess(address_of(scope), password)
        if wait_s is None:
            self._proved = digest
            return None
        if wait_s > 0:
            return _error(429, "Too many wrong passwords.", {"Retry-After": str(int(wait_s) + 1)})
        return _error(401, "The password is wrong.", {"WWW-Authenticate": "Bearer"})

    async def guess(self, address: str, password: str) -> float | None:
        """None when `password` is right; else seconds to wait before the next guess (0: it was merely wrong)."""
        wait_s = self._attempts.wait_s(address)
        if wait_s > 0 or self._hash is None:
            return wait_s
        self._attempts.wrong(address)  # counted before it is known, so that guesses sent together count together
        if await asyncio.to_thread(is_password, password, self._hash):
            self._attempts.right(address)
            return None
        return 0.0

    @property
    def has_password(self) -> bool:
        """Whether people have to log in."""
        return self._hash is not None

    @property
    def sessions(self) -> Sessions:
        """Who is logged in."""
        return self._sessions


def address_of(scope: Scope) -> str:
    """Who asks."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _is_own_page(headers: Headers) -> bool:
    """Whether a browser says that one of our own pages asks. What is no browser says nothing, and holds no cookie."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    if origin == "null":  # some forms of our own, where a browser withholds the address; others say where they are from
        return headers.get("sec-fetch-site") == "same-origin"
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""


def _host_name(headers: Headers) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _session_id(headers: Headers) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None


def _bearer(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" and value.strip() else None


def _is_long(headers: Headers) -> bool:
    """Whether a body is longer than a login, or does not say how long it is."""
    length = headers.get("content-length", "")
    return not (length.isascii() and length.isdigit() and int(length) <= MAX_LOGIN_BYTES)


def _path(scope: Scope) -> str:
    return scope["path"]


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": message}, status, headers)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending

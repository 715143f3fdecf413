"""Images by web address, for servers that allow it: only from listed domains, never from inside the network.

Every hop of a redirect is checked anew: the domain against the list, and all addresses it resolves to against what is
public. The connection goes to the address that was checked, so that a name which changes its mind between check and
connection gains nothing. Bytes and time are bounded. Runs on the event loop and never blocks it; reads no image.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import httpx

from backend.conversation import ImagePart
from backend.errors import Rejected

MAX_REDIRECTS = 3
TIMEOUT_S = 10.0
"""For all images of one request together, redirects included."""

MAX_FETCHES = 8
"""So many images of all requests are fetched at once; the others wait, within their time."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as text."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ImageFetcher:
    """Fetches what a request names by web address. `domains` are `host` or `host:port`, lower case.

    `max_bytes` bounds the images of one request together. `resolve` and `transport` are the network's; tests have
    their own.
    """

    def __init__(
        self,
        domains: Sequence[str],
        *,
        max_bytes: int,
        timeout_s: float = TIMEOUT_S,
        resolve: Resolve | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._domains = frozenset(domains)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._resolve = resolve or _resolve
        self._transport = transport
        self._ssl = httpx.create_ssl_context(trust_env=False)
        self._places = asyncio.Semaphore(MAX_FETCHES)

    async def fill(self, parts: Sequence[ImagePart]) -> list[ImagePart]:
        """The parts, those with a web address now holding its bytes; raises Rejected with the part's `param`."""
        budget = _Budget(self._max_bytes)
        waiting = [asyncio.ensure_future(self._fill(part, budget)) for part in parts]
        try:
            return list(await asyncio.gather(*waiting))
        finally:
            for task in waiting:
                task.cancel()

    async def _fill(self, part: ImagePart, budget: _Budget) -> ImagePart:
        if not is_web_address(part.uri):
            return part
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                return replace(part, payload=await self._fetch(part.uri, part.param, budget))
        except TimeoutError:
            raise _refuse(part.param, f"could not be fetched within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise _refuse(part.param, f"could not be fetched ({type(error).__name__})") from None

    async def _fetch(self, address: str, param: str, budget: _Budget) -> bytes:
        url = self._checked(address, param)
        # A client of its own: a kept connection belongs to an address, and another name may share it.
        async with httpx.AsyncClient(
            verify=self._ssl, transport=self._transport, trust_env=False, timeout=self._timeout_s
        ) as client:
            for _ in range(MAX_REDIRECTS + 1):
                reply = await client.send(await self._request(url, param), stream=True)
                try:
                    if reply.has_redirect_location:
                        url = self._checked(str(url.join(reply.headers["location"])), param, secure=url.scheme)
                        continue
                    return await _read(reply, param, budget)
                finally:
                    await reply.aclose()
        raise _refuse(param, f"is redirected more than {MAX_REDIRECTS} times")

    def _checked(self, address: str, param: str, *, secure: str = "http") -> httpx.URL:
        """The address as a URL of a listed domain; `secure` is the scheme that a redirect comes from."""
        try:
            url = httpx.URL(address)
        except (httpx.InvalidURL, ValueError):
            raise _refuse(param, "is not a web address that can be read") from None
        if url.scheme not in ("http", "https") or (secure == "https" and url.scheme != "https"):
            raise _refuse(param, "is redirected to another kind of address")
        if url.userinfo:
            raise _refuse(param, "names a user or a password in its web address, which is not sent on")
        host = url.raw_host.decode("ascii")
        named = host if url.port is None else f"{host}:{url.port}"
        if named not in self._domains:
            raise _refuse(param, f"is at {named[:100]}, which is not among the domains of --allowed-media-domains")
        return url

    async def _request(self, url: httpx.URL, param: str) -> httpx.Request:
        """A request to an address that was checked, in the name of the host."""
        host = url.raw_host.decode("ascii")
        try:
            found = await self._resolve(host.strip("[]"), url.port or (443 if url.scheme == "https" else 80))
        except OSError:
            found = ()
        if not found:
            raise _refuse(param, f"is at {host[:100]}, which cannot be found")
        if not all(map(is_public, found)):
            raise _refuse(param, f"is at {host[:100]}, which leads to an address that is not public")
        headers = {"Host": url.netloc.decode("ascii"), "Accept": "image/*", "Accept-Encoding": "identity"}
        extensions: dict[str, Any] = {"sni_hostname": host, "timeout": httpx.Timeout(self._timeout_s).as_dict()}
        return httpx.Request("GET", url.copy_with(host=found[0]), headers=headers, extensions=extensions)


class _Budget:
    """How many bytes the images of one request may still have."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = self.left = num_bytes

    def take(self, num_bytes: int, param: str) -> None:
        self.left -= num_bytes
        if self.left < 0:
            raise _refuse(param, f"is too large: the images of a request have at most {self.num_bytes} bytes together")


async def _read(reply: httpx.Response, param: str, budget: _Budget) -> bytes:
    if reply.status_code != HTTPStatus.OK:
        raise _refuse(param, f"could not be fetched: its server answered {reply.status_code}")
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise _refuse(param, "comes compressed, which was not asked for")
    payload = bytearray()
    async for piece in reply.aiter_bytes():
        budget.take(len(piece), param)
        payload += piece
    if not payload:
        raise _refuse(param, "is empty")
    return bytes(payload)


def is_web_address(uri: str) -> bool:
    """Whether an image is to be fetched."""
    return uri[:8].lower().startswith(("http://", "https://"))


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the internet at large, an IPv4 address inside an IPv6 one included."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.sixtofour or ip.teredo:
            return False
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped or ip
    return ip.is_global and not ip.is_multicast


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _refuse(param: str, why: str) -> Rejected:
    return Rejected(f"{param} {why}", param=param, code="invalid_image")

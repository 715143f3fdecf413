"""Fetching images by address: which domains, which addresses, how far, how much, how long; and what is never said.

The internet is a table of names and a table of pages; what the fetcher connects to is what the second one sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import pytest

from backend.conversation import ImagePart
from backend.errors import Rejected
from backend.image_fetch import ImageFetcher, is_public

PUBLIC, OTHER, PRIVATE = "93.184.216.34", "2606:2800:220:1::1", "10.0.0.7"
NAMES = {"a.example": [PUBLIC], "b.example": [OTHER], "inside.example": [PRIVATE], "both.example": [PUBLIC, PRIVATE]}
PARAM = "messages[0].content[1].image_url"
Page = Callable[[httpx.Request], httpx.Response]


async def resolve(host: str, port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError("no such name")
    return NAMES[host]


def fetcher(page: Page, *, domains: Sequence[str] = tuple(NAMES), max_bytes: int = 1000, **more: float) -> ImageFetcher:
    return ImageFetcher(domains, max_bytes=max_bytes, resolve=resolve, transport=httpx.MockTransport(page), **more)


async def fetch(page: Page, url: str = "https://a.example/cat.jpg", **more: object) -> bytes | None:
    (part,) = await fetcher(page, **more).fill([ImagePart(url, PARAM)])  # type: ignore[arg-type]
    return part.payload


def to(location: str) -> httpx.Response:
    return httpx.Response(302, headers={"location": location})


async def test_the_connection_goes_to_the_address_that_was_checked_in_the_name_of_the_host() -> None:
    seen: list[httpx.Request] = []

    def page(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"pixels")

    assert await fetch(page, "https://a.example/cat.jpg?size=2") == b"pixels"
    (request,) = seen
    assert request.url == f"https://{PUBLIC}/cat.jpg?size=2"
    assert request.headers["host"] == "a.example"
    assert request.extensions["sni_hostname"] == "a.example"
    assert "authorization" not in request.headers
    assert "cookie" not in request.headers


async def test_an_ipv6_address_is_connected_to_as_well() -> None:
    seen: list[str] = []

    def page(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, content=b"pixels")

    assert await fetch(page, "http://b.example/cat.jpg") == b"pixels"
    assert seen == [f"http://[{OTHER}]/cat.jpg"]


async def test_data_uris_are_left_alone() -> None:
    def page(request: httpx.Request) -> httpx.Response:
        raise AssertionError("nothing to fetch")

    part = ImagePart("data:image/png;base64,AAAA", PARAM)
    assert await fetcher(page).fill([part]) == [part]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://evil.example/cat.jpg", "evil.example, which is not among the domains of --allowed-media-domains"),
        ("https://a.example.evil.example/cat.jpg", "not among the domains"),
        ("https://a.example:8443/cat.jpg", "a.example:8443, which is not among"),
        ("https://user:secret@a.example/cat.jpg", "names a user or a password"),
        ("https://a.example@evil.example/cat.jpg", "names a user or a password"),
        (f"http://{PRIVATE}/cat.jpg", "not among the domains"),
        ("http://[::1]/cat.jpg", "not among the domains"),
        ("https://inside.example/cat.jpg", "leads to an address that is not public"),
        ("https://both.example/cat.jpg", "leads to an address that is not public"),
        ("https:///cat.jpg", "not among the domains"),
        ("https://a.example:port/cat.jpg", "not a web address that can be read"),
    ],
)
async def test_what_may_not_be_fetched_is_never_asked_for(url: str, words: str) -> None:
    def page(request: httpx.Request) -> httpx.Response:
        raise AssertionError("it was asked for")

    with pytest.raises(Rejected) as caught:
        await fetch(page, url)
    assert words in str(caught.value)
    assert str(caught.value).startswith(PARAM)
    assert (caught.value.param, caught.value.code) == (PARAM, "invalid_image")
    assert "secret" not in str(caught.value)
    assert "cat.jpg" not in str(caught.value)


async def test_a_listed_name_that_cannot_be_found_is_said() -> None:
    with pytest.raises(Rejected, match=r"gone\.example, which cannot be found"):
        await fetch(lambda request: httpx.Response(200), "https://gone.example/x", domains=("gone.example",))


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("https://evil.example/cat.jpg", "not among the domains"),
        ("https://inside.example/cat.jpg", "not public"),
        ("http://b.example/cat.jpg", "another kind of address"),
        ("file:///etc/passwd", "another kind of address"),
        ("https://a.example/cat.jpg", "redirected more than 3 times"),
    ],
)
async def test_every_redirect_is_checked_anew(location: str, words: str) -> None:
    num_asked = 0

    def page(request: httpx.Request) -> httpx.Response:
        nonlocal num_asked
        num_asked += 1
        return to(location)

    with pytest.raises(Rejected, match=words):
        await fetch(page)
    assert num_asked == (4 if "more than" in words else 1)


async def test_a_name_that_changes_its_mind_after_a_redirect_is_refused() -> None:
    answers = [[PUBLIC], [PRIVATE]]

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    inside = ImageFetcher(
        ["a.example"],
        max_bytes=1000,
        resolve=rebinding,
        transport=httpx.MockTransport(lambda request: to("/again.jpg")),
    )
    with pytest.raises(Rejected, match="not public"):
        await inside.fill([ImagePart("https://a.example/cat.jpg", PARAM)])


async def test_a_redirect_within_the_list_is_followed() -> None:
    def page(request: httpx.Request) -> httpx.Response:
        return to("https://b.example/real.jpg") if request.url.host == PUBLIC else httpx.Response(200, content=b"x")

    assert await fetch(page) == b"x"


async def test_the_images_of_a_request_share_the_byte_bound() -> None:
    parts = [ImagePart("https://a.example/1", "first"), ImagePart("https://a.example/2", "second")]
    half = fetcher(lambda request: httpx.Response(200, content=b"x" * 500))
    assert [len(part.payload or b"") for part in await half.fill(parts)] == [500, 500]
    more = fetcher(lambda request: httpx.Response(200, content=b"x" * 501))
    with pytest.raises(Rejected, match="at most 1000 bytes together"):
        await more.fill(parts)


async def test_reading_stops_at_the_byte_bound() -> None:
    num_sent = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal num_sent
            while True:
                num_sent += 100
                yield b"x" * 100

    with pytest.raises(Rejected, match="too large"):
        await fetch(lambda request: httpx.Response(200, stream=Endless()))
    assert num_sent <= 1100


async def test_a_server_that_trickles_is_given_up() -> None:
    class Slow(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0.01)
                yield b"x"

    with pytest.raises(Rejected, match=r"within 0\.1 s"):
        await fetch(lambda request: httpx.Response(200, stream=Slow()), timeout_s=0.1)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (httpx.Response(404), "answered 404"),
        (httpx.Response(200), "is empty"),
        (httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"x")), "compressed"),
    ],
)
async def test_replies_that_hold_no_image(reply: httpx.Response, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        await fetch(lambda request: reply)


async def test_a_connection_that_fails_is_said_without_its_words() -> None:
    def page(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot reach {PUBLIC}")

    with pytest.raises(Rejected, match=r"could not be fetched \(ConnectError\)") as caught:
        await fetch(page)
    assert PUBLIC not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public

"""Who may use the server, from where, and what it fetches for them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import openai
import pytest

from backend.image_fetch import ImageFetcher
from backend.server.port import check_exposure
from tests.api.conftest import Scripted
from tests.api.test_images import data_uri, picture, text

Start = Callable[..., Scripted]
HI: list[Any] = [{"role": "user", "content": "hi"}]
PREFLIGHT = {
    "Origin": "https://a.example",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_this_machine_needs_no_key(host: str) -> None:
    check_exposure(host, api_key=None, insecure=False)


def test_a_key_or_a_word_opens_an_address_to_others() -> None:
    check_exposure("0.0.0.0", api_key="open sesame", insecure=False)
    check_exposure("0.0.0.0", api_key=None, insecure=True)


def test_web_pages_are_not_let_in_unless_named(scripted: Start) -> None:
    with scripted("Hey").live.http() as http:
        for method in ("GET", "OPTIONS"):
            refused = http.request(method, "/v1/models", headers=PREFLIGHT)
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
    with scripted("Hey", allowed_origins="https://a.example", api_key="open sesame").live.http() as http:
        allowed = http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in allowed.headers
        refused = http.get("/v1/models", headers={"Origin": "https://a.example"})
        assert refused.status_code == 401, "an origin is no key"
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        other = http.options("/v1/chat/completions", headers=PREFLIGHT | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "origin", ["https://b.example", "null", "http://localhost:3000", "file://", "https://a.example:8443"]
)
@pytest.mark.parametrize("settings", [{}, {"allowed_origins": "https://a.example"}])
def test_a_page_of_another_site_cannot_make_the_engine_compute(
    scripted: Start, settings: dict[str, Any], origin: str
) -> None:
    """What a browser sends without asking: a POST of plain text, whose answer the page could not even read."""
    rig = scripted("Hey", **settings)
    body = json.dumps({"model": "scripted", "messages": HI})
    plain = {"Content-Type": "text/plain"}
    with rig.live.http() as http:
        refused = http.post("/v1/chat/completions", content=body, headers=plain | {"Origin": origin})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in refused.headers
        assert rig.runner.steps == []
        assert http.post("/v1/chat/completions", content=body, headers=plain).status_code == 200


@pytest.mark.parametrize("allowed", ["https://a.example", "*", "https://A.example,http://x"])
def test_a_page_that_is_named_can(scripted: Start, allowed: str) -> None:
    rig = scripted("Hey", allowed_origins=allowed)
    with rig.live.http() as http:
        body = {"model": "scripted", "messages": HI}
        reply = http.post("/v1/chat/completions", json=body, headers={"Origin": "https://a.example"})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] in ("https://a.example", "*")


@pytest.mark.parametrize("path", ["/v1/models", "/engine/steps", "/metrics", "/openapi.json"])
def test_a_page_whose_name_leads_here_reads_nothing(scripted: Start, path: str) -> None:
    """DNS rebinding: to the browser it is the page's own site, so no origin is told."""
    live = scripted("Hey").live
    port = live.root.rpartition(":")[2]
    with live.http() as http:
        for name in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example"):
            refused = http.get(path, headers={"Host": name})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")
        for name in (f"localhost:{port}", "LOCALHOST", f"127.0.0.1:{port}", f"[::1]:{port}", "192.168.1.7"):
            assert http.get(path, headers={"Host": name}).status_code == 200, name
        assert http.get("/health", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "open sesame"},
        {"insecure": True},
        {"allowed_origins": "https://gpu-box.example"},
        {"allowed_origins": "*"},
        {"host": "gpu-box.example"},
    ],
)
def test_a_server_that_was_given_a_name_answers_to_it(scripted: Start, settings: dict[str, Any]) -> None:
    headers = {"Host": "gpu-box.example:8000", "Authorization": "Bearer open sesame"}
    with scripted("Hey", **settings).live.http() as http:
        assert http.get("/v1/models", headers=headers).status_code == 200


def web(pages: dict[str, bytes]) -> ImageFetcher:
    """A fetcher on a web of these paths, all on a.example."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34"]

    def page(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=pages[request.url.path])

    return ImageFetcher(["a.example"], max_bytes=10_000, resolve=resolve, transport=httpx.MockTransport(page))


def test_images_are_fetched_from_listed_domains_and_keep_their_order(scripted: Start) -> None:
    pages = {f"/{color}": base64.b64decode(data_uri(color).split(",")[1]) for color in ("red", "blue")}
    rig = scripted("two", fetcher=web(pages))
    uris = ["https://a.example/red", data_uri("lime"), "https://a.example/blue"]
    messages: Any = [{"role": "user", "content": [*map(picture, uris), text("?")]}]
    reply = rig.live.openai().chat.completions.create(model="scripted", messages=messages)
    assert reply.choices[0].message.content == "two"
    assert [i.getpixel((0, 0)) for i in rig.adapter.seen_images] == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("https://b.example/red", "not among the domains"),
        ("https://a.example/text", "not a readable JPEG"),
    ],
)
def test_a_fetched_image_is_refused_by_the_name_of_its_part(scripted: Start, uri: str, words: str) -> None:
    client = scripted("Hey", fetcher=web({"/text": b"no image at all"})).live.openai()
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.responses.create(
            model="scripted",
            input=[{"role": "user", "content": [{"type": "input_image", "image_url": uri, "detail": "auto"}]}],
        )
    assert caught.value.param == "input[0].content[0].image_url"

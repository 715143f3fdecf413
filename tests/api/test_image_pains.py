"""What users of other servers report of images, streams and fields: one test for each such report, by its number in the
list of reports (26 to 38), against a live server.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from backend.image_fetch import ImageFetcher
from tests.api.conftest import Scripted
from tests.api.test_going_away import cancelled_within_a_step
from tests.api.test_images import data_uri

Start = Callable[..., Scripted]
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def body_of(path: str, *uris: str, **fields: Any) -> dict[str, Any]:
    """A request with these images, in the words of either API."""
    if path == CHAT:
        parts: list[Any] = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
        return {"model": "scripted", "messages": [{"role": "user", "content": parts}]} | fields
    parts = [{"type": "input_image", "image_url": uri} for uri in uris]
    return {"model": "scripted", "input": [{"role": "user", "content": parts}]} | fields


def ask(rig: Scripted, path: str, *uris: str, **fields: Any) -> httpx.Response:
    with rig.live.http() as http:
        return http.post(path, json=body_of(path, *uris, **fields))


def as_uri(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


def test_26_responses_take_images_and_no_error_echoes_them(scripted: Start) -> None:
    rig = scripted("Hey")
    assert ask(rig, RESPONSES, data_uri("red")).status_code == 200
    assert len(rig.adapter.seen_images) == 1
    broken = data_uri("red")[:-40]
    for path in (CHAT, RESPONSES):
        refused = ask(rig, path, broken)
        assert refused.status_code == 400
        assert broken[30:60] not in refused.text


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_27_data_uris_come_in_many_spellings(scripted: Start, path: str) -> None:
    rig = scripted("Hey")
    head, text = data_uri("red").split(",")
    lines = "\r\n".join(text[i : i + 40] for i in range(0, len(text), 40))
    spellings = [
        f"{head},{text.rstrip('=')}",
        f"{head},{lines}\n",
        f"{head},{text.replace('+', '-').replace('/', '_')}",
        f"{head.upper()},{text}",
        f"data:image/png;name=cat.png;base64,{text}",
        f"data:image/jpeg;base64,{text}",
    ]
    for spelling in spellings:
        assert ask(rig, path, spelling).status_code == 200, spelling[:60]
    assert [image.getpixel((0, 0)) for image in rig.adapter.seen_images] == [(255, 0, 0)] * len(spellings)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_27_an_untyped_part_is_refused_and_not_dropped(scripted: Start, path: str) -> None:
    rig = scripted("Hey")
    body = body_of(path, data_uri("red"))
    field = "messages" if path == CHAT else "input"
    body[field][0]["content"].append({"image_url": data_uri("blue")})
    with rig.live.http() as http:
        refused = http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"{field}[0].content[1]")
    assert rig.runner.steps == []


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "BMP", "PNG", "JPEG"])
def test_28_formats_are_seen(scripted: Start, kind: str) -> None:
    rig = scripted("Hey")
    assert ask(rig, CHAT, data_uri("red", kind)).status_code == 200
    red, green, blue = rig.adapter.seen_images[0].convert("RGB").resize((1, 1)).tobytes()
    assert red > 200 > 60 > max(green, blue)


@pytest.mark.parametrize(
    "payload", [b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", b"\x00\x00\x00\x18ftypavif", b"<svg/>"]
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_28_what_cannot_be_read_is_refused_never_answered_from_text_alone(
    scripted: Start, path: str, payload: bytes
) -> None:
    rig = scripted("Hey")
    uri = "data:image/heic;base64," + base64.b64encode(payload).decode()
    assert ask(rig, path, data_uri("red"), uri).status_code == 400
    assert rig.runner.steps == []


def test_29_pictures_are_turned_upright(scripted: Start) -> None:
    rig, exif = scripted("Hey"), Image.Exif()
    exif[0x0112] = 6
    assert ask(rig, CHAT, as_uri(Image.new("RGB", (40, 20)), "JPEG", exif=exif)).status_code == 200
    assert rig.adapter.seen_images[0].size == (20, 40)


def test_30_alpha_is_on_white_and_16_bits_are_scaled(scripted: Start) -> None:
    rig = scripted("Hey")
    grey = Image.fromarray(np.full((4, 4), 32896, np.uint16))
    uris = as_uri(Image.new("RGBA", (4, 4), (9, 9, 9, 0)), "PNG"), as_uri(grey, "PNG")
    assert ask(rig, CHAT, *uris).status_code == 200
    assert [image.getpixel((0, 0)) for image in rig.adapter.seen_images] == [(255, 255, 255), (128, 128, 128)]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_31_bombs_and_truncated_images_are_400_and_large_bodies_413(scripted: Start, path: str) -> None:
    rig = scripted("Hey", max_image_pixels=1_000_000, max_request_bytes=64_000)
    bomb = as_uri(Image.new("1", (4000, 4000)), "PNG")
    refused = ask(rig, path, bomb)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_image")
    assert "1000000 pixels" in refused.text
    assert ask(rig, path, data_uri("red")[:-40]).status_code == 400
    assert ask(rig, path, "data:image/png;base64," + "A" * 70_000).status_code == 413
    assert rig.adapter.seen_images == []


@pytest.mark.parametrize(
    "address", ["http://169.254.169.254/latest/meta-data", "http://localhost:8000/health", "file:///etc/passwd"]
)
def test_32_nothing_is_fetched_unless_allowed(scripted: Start, address: str) -> None:
    rig = scripted("Hey")
    assert ask(rig, CHAT, address).status_code == 400
    assert rig.runner.steps == []


def test_32_a_redirect_from_an_allowed_domain_into_the_network_is_refused(scripted: Start) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34"] if host == "a.example" else ["169.254.169.254"]

    def page(request: httpx.Request) -> httpx.Response:
        assert request.url.host == "93.184.216.34"
        return httpx.Response(302, headers={"location": "http://inside.example/latest/meta-data"})

    transport = httpx.MockTransport(page)
    domains = ["a.example", "inside.example"]
    rig = scripted("Hey", fetcher=ImageFetcher(domains, max_bytes=1000, resolve=resolve, transport=transport))
    refused = ask(rig, CHAT, "http://a.example/cat.jpg")
    assert refused.status_code == 400
    assert "not public" in refused.json()["error"]["message"]


def test_33_a_system_message_before_an_image_and_an_empty_assistant_are_taken(scripted: Start) -> None:
    body = body_of(CHAT, data_uri("red"))
    body["messages"] = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
        *body["messages"],
    ]
    with scripted("Hey").live.http() as http:
        assert http.post(CHAT, json=body).status_code == 200


def test_34_usage_comes_when_asked_for_with_no_choices(scripted: Start) -> None:
    with scripted("Hey").live.http() as http:
        unasked = http.post(CHAT, json=body_of(CHAT, data_uri("red"), stream=True)).text
        asked = http.post(
            CHAT, json=body_of(CHAT, data_uri("red"), stream=True, stream_options={"include_usage": True})
        ).text
    assert "usage" not in unasked
    last = json.loads(asked.split("\n\n")[-3].removeprefix("data: "))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)


def test_35_max_completion_tokens_is_honoured_and_unknown_fields_are_taken(scripted: Start) -> None:
    rig = scripted("Hello")
    reply = ask(rig, CHAT, data_uri("red"), max_completion_tokens=2, field_of_tomorrow=1).json()
    assert reply["choices"][0]["message"]["content"] == "He"
    refused = ask(rig, CHAT, data_uri("red"), audio={"voice": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_36_who_leaves_frees_blocks_and_embeddings_within_a_step(scripted: Start, path: str, stream: bool) -> None:
    rig = scripted("abcdef", step_s=0.01)
    body = body_of(path, data_uri("red"), stream=stream, ignore_eos=True)
    with rig.live.http() as http:
        if stream:
            with http.stream("POST", path, json=body) as reply:
                next(reply.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post(path, json=body, timeout=0.3)
    assert cancelled_within_a_step(rig) < 200
    rig.live.service.engine._scheduler.check()


def test_37_streams_end_with_done_and_bad_requests_never_begin_one(scripted: Start) -> None:
    rig = scripted("Hey")
    assert ask(rig, CHAT, data_uri("red"), stream=True).text.rstrip().endswith("data: [DONE]")
    for fields in ({"n": 0}, {"max_tokens": 0}, {"temperature": -1}):
        refused = ask(rig, CHAT, data_uri("red"), stream=True, **fields)
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/json"


def test_38_more_than_ten_images_are_seen_in_order(scripted: Start) -> None:
    rig = scripted("Hey")
    colors = [(20 * i, 0, 0) for i in range(12)]
    uris = [as_uri(Image.new("RGB", (4, 4), color), "PNG") for color in colors]
    assert ask(rig, CHAT, *uris).status_code == 200
    assert [image.getpixel((0, 0)) for image in rig.adapter.seen_images] == colors

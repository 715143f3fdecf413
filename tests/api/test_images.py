"""Images in chat requests: taken in order, refused with the name of their part, never lost."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import openai
import pytest
from PIL import Image

from tests.api.conftest import Live, Scripted
from tests.api.scripted import NUM_EMBEDS, ScriptedAdapter

Start = Callable[..., Scripted]


def data_uri(color: str, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(buffer, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


def picture(uri: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri, **more}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_images_are_seen_in_order(scripted: Start) -> None:
    rig = scripted("a red one")
    content = [picture(data_uri("red")), text("and"), picture(data_uri("blue"), detail="low"), text("?")]
    reply = rig.live.openai().chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": content}],  # type: ignore[misc, list-item]
    )
    assert reply.choices[0].message.content == "a red one"
    assert reply.usage
    assert reply.usage.prompt_tokens == 2 * NUM_EMBEDS + len("and?") + 1
    assert [i.getpixel((0, 0)) for i in rig.adapter.seen_images] == [(255, 0, 0), (0, 0, 255)]
    assert sum(step.num_encoder_slices for step in rig.runner.steps) == 4


def test_an_image_that_cannot_be_encoded_fails_its_request_alone(scripted: Start) -> None:
    rig = scripted("fine")
    rig.runner.fail_images = "the tower fell"
    client = rig.live.openai()
    messages: Any = [{"role": "user", "content": [picture(data_uri("red")), text("?")]}]
    with pytest.raises(openai.InternalServerError, match="the tower fell"):
        client.chat.completions.create(model="scripted", messages=messages)
    reply = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    assert reply.choices[0].message.content == "fine"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("https://example.com/cat.jpg", "fetching is off"),
        ("/etc/passwd", "data: URI"),
        ("data:image/png;base64,SECRETSECRET", "not a readable JPEG"),
        (data_uri("red")[:-40], "damaged or cut short"),
    ],
)
def test_a_bad_image_is_refused_by_the_name_of_its_part(scripted: Start, uri: str, words: str) -> None:
    client = scripted().live.openai()
    content = [text("look"), picture(data_uri("red")), picture(uri)]
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "system", "content": "x"}, {"role": "user", "content": content}],  # type: ignore[misc, list-item]
        )
    assert caught.value.param == "messages[1].content[2].image_url"
    assert "SECRET" not in str(caught.value)
    assert uri[30:] not in str(caught.value) or len(uri) < 40


def test_more_images_than_the_context_holds_are_refused_before_they_are_read(scripted: Start) -> None:
    client = scripted().live.openai()
    messages: Any = [{"role": "user", "content": [picture("data:image/png;base64,nothing")] * (256 // NUM_EMBEDS)}]
    with pytest.raises(openai.BadRequestError, match="64 images take at least 256") as caught:
        client.chat.completions.create(model="scripted", messages=messages)
    assert caught.value.code == "context_length_exceeded"


def test_the_pixel_bound_of_a_request(scripted: Start) -> None:
    client = scripted(max_image_pixels=48).live.openai()
    messages: Any = [{"role": "user", "content": [picture(data_uri("red"))] * 5}]
    with pytest.raises(openai.BadRequestError, match="240 pixels together, more than the 192") as caught:
        client.chat.completions.create(model="scripted", messages=messages)
    assert caught.value.code == "invalid_image"


def test_the_pixel_bound(scripted: Start) -> None:
    client = scripted(max_image_pixels=47).live.openai()
    messages: Any = [{"role": "user", "content": [picture(data_uri("red"))]}]
    with pytest.raises(openai.BadRequestError, match="8x6, more than the 47 pixels"):
        client.chat.completions.create(model="scripted", messages=messages)


def test_a_text_model_refuses_images(scripted: Start) -> None:
    client = scripted(adapter=ScriptedAdapter(takes_images=False)).live.openai()
    messages: Any = [{"role": "user", "content": [picture(data_uri("red"))]}]
    with pytest.raises(openai.BadRequestError, match="takes no images") as caught:
        client.chat.completions.create(model="scripted", messages=messages)
    assert caught.value.param == "messages[0].content[0].image_url"


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_send_images(scripted: Start, role: str) -> None:
    client = scripted().live.openai()
    messages: Any = [{"role": role, "content": [picture(data_uri("red"))]}, {"role": "user", "content": "hi"}]
    with pytest.raises(openai.BadRequestError, match="only user messages"):
        client.chat.completions.create(model="scripted", messages=messages)


def test_a_real_model_sees_the_difference(vision: Live) -> None:
    client = vision.openai()

    def ask(color: str) -> tuple[str | None, int]:
        messages: Any = [{"role": "user", "content": [picture(data_uri(color)), text("What is it?")]}]
        reply = client.chat.completions.create(model="tiny", messages=messages, temperature=0.0, max_tokens=24)
        assert reply.usage
        return reply.choices[0].message.content, reply.usage.prompt_tokens

    red, blue = ask("red"), ask("blue")
    assert red == ask("red")
    assert red[0] != blue[0]
    assert red[1] == blue[1]
    with vision.http() as http:
        steps = http.get("/engine/steps").json()["steps"]
    assert sum(step["encoder_slices"] for step in steps) > 0

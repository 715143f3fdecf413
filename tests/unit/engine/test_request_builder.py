"""Requests made from conversations: one image at a time, big ones apart from small ones, and none for who has left."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from PIL import Image

import backend.request_builder
from backend.conversation import Conversation, ImagePart, SamplingWish
from backend.errors import Cancelled
from backend.models.adapter import Message
from backend.request_builder import LIGHT_CHARS, RequestBuilder
from backend.types.request import Prepared, RequestClass
from tests.api.scripted import ScriptedAdapter

LONG = 1 << 22


def picture(shade: int, side: int = 32) -> ImagePart:
    buffer = io.BytesIO()
    Image.new("L", (side, side), shade).save(buffer, "PNG")
    return ImagePart("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode(), f"image {shade}")


def conversation(text: str, *images: ImagePart) -> Conversation:
    parts: list[Any] = [{"type": "image"} for _ in images]
    return Conversation([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], images)


class Watching(ScriptedAdapter):
    """Waits at each prepare until it may go on; counts which images are alive as each is read."""

    def __init__(self) -> None:
        super().__init__(max_model_len=LONG)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.has_begun = threading.Event()
        self.began: list[str] = []
        self.num_alive: list[int] = []

    def prepare(self, messages: Sequence[Message], images: Sequence[Image.Image], tools: Any = ()) -> Prepared:
        text: str = messages[0]["content"][-1]["text"]
        self.began.append(text[:5])
        self.has_begun.set()
        if len(text) > LIGHT_CHARS or len(images) > 0:
            assert self.may_go_on.wait(30)
        made: list[weakref.ref[Image.Image]] = []
        for index in range(len(images)):
            made.append(weakref.ref(images[index]))
            gc.collect()
            self.num_alive.append(sum(ref() is not None for ref in made))
        return Prepared((1, 2, 3), (), (), (range(3),))


@pytest.fixture
def adapter() -> Iterator[Watching]:
    adapter = Watching()
    yield adapter
    adapter.may_go_on.set()


@pytest.fixture
def builder(adapter: Watching) -> Iterator[RequestBuilder]:
    builder = RequestBuilder(adapter, max_model_len=LONG, max_image_pixels=1_000_000)
    yield builder
    builder.close()


def build(builder: RequestBuilder, what: Conversation) -> asyncio.Task[Any]:
    return asyncio.create_task(builder.build(what, SamplingWish(), RequestClass.INTERACTIVE))


async def until_one_began(adapter: Watching) -> None:
    assert await asyncio.to_thread(adapter.has_begun.wait, 10)


async def test_images_are_decoded_one_at_a_time(adapter: Watching, builder: RequestBuilder) -> None:
    await build(builder, conversation("look", *map(picture, range(5))))
    assert adapter.num_alive == [0] * 5, "nobody keeps an image that was read"


async def test_big_texts_hold_up_one_another_and_no_small_one(adapter: Watching, builder: RequestBuilder) -> None:
    adapter.may_go_on.clear()
    big = [build(builder, conversation(f"big {i}" + "x" * LIGHT_CHARS)) for i in range(3)]
    await until_one_began(adapter)
    async with asyncio.timeout(10):
        for i in range(5):
            await build(builder, conversation(f"tiny{i}"))
    assert adapter.began == ["big 0", *(f"tiny{i}" for i in range(5))]
    adapter.may_go_on.set()
    await asyncio.gather(*big)
    assert adapter.began[6:] == ["big 1", "big 2"]


async def test_many_pixels_make_a_small_body_heavy(
    adapter: Watching, builder: RequestBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.request_builder, "LIGHT_PIXELS", 1000)
    adapter.may_go_on.clear()
    big = [build(builder, conversation(f"big {i}", picture(i))) for i in range(3)]
    await until_one_began(adapter)
    async with asyncio.timeout(10):
        await build(builder, conversation("tiny0"))
    assert len(adapter.began) == 2
    adapter.may_go_on.set()
    await asyncio.gather(*big)


async def test_who_leaves_ends_the_work_before_the_next_image(adapter: Watching, builder: RequestBuilder) -> None:
    adapter.may_go_on.clear()
    building = build(builder, conversation("look", *map(picture, range(5))))
    await until_one_began(adapter)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    adapter.may_go_on.set()
    await build(builder, conversation("next"))
    assert adapter.num_alive == []


async def test_what_waits_when_the_server_stops_is_told(adapter: Watching, builder: RequestBuilder) -> None:
    adapter.may_go_on.clear()
    waiting = [build(builder, conversation("x" * (LIGHT_CHARS + 1))) for _ in range(2)]
    await until_one_began(adapter)
    builder.close()
    with pytest.raises(Cancelled, match="stopping"):
        await waiting[1]
    with pytest.raises(Cancelled, match="stopping"):
        await build(builder, conversation("late"))
    adapter.may_go_on.set()
    await waiting[0]

"""A conversation over a real HTTP server that answers by script."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import aclosing

import openai
import pytest
from openai import AsyncOpenAI
from PIL import Image

from tests.unit.pipeline.scripted_server import Hangup, Refusal, ScriptedServer, Step, Words
from ui.conversation import Conversation
from ui.errors import say


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


async def _say(conversation: Conversation, text: str) -> str:
    return "".join([piece async for piece in conversation.ask(text)])


def _with(server: ScriptedServer) -> Conversation:
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
    return Conversation(client, model=None, max_tokens=32)


async def test_every_turn_carries_the_ones_before(server: ScriptedServer) -> None:
    server.script = [Words(("Hello ", "there.")), Words(("Fine.",))]
    conversation = _with(server)
    assert await _say(conversation, "Hi") == "Hello there."
    assert await _say(conversation, "How are you?") == "Fine."
    assert [(turn["role"], turn["content"]) for turn in server.chats[1].body["messages"]] == [
        ("user", "Hi"),
        ("assistant", "Hello there."),
        ("user", "How are you?"),
    ]
    assert server.chats[0].body["model"] == "scripted-vlm"
    assert server.chats[0].headers.get("x-request-class") is None  # interactive, unlike the cameras


async def test_a_refused_turn_leaves_the_conversation_as_it_was(server: ScriptedServer) -> None:
    server.script = [Refusal(400, "too long"), Words(("Fine.",))]
    conversation = _with(server)
    with pytest.raises(openai.BadRequestError, match="too long"):
        await _say(conversation, "a whole book")
    await _say(conversation, "Hi")
    assert [turn["content"] for turn in server.chats[1].body["messages"]] == ["Hi"]


@pytest.mark.parametrize("step", [Words(("One ", "two "), breaks=True), Hangup()])
async def test_an_answer_that_breaks_off_is_a_plain_sentence(server: ScriptedServer, step: Step) -> None:
    server.script = [step, Words(("Fine.",))]
    conversation = _with(server)
    with pytest.raises(openai.APIConnectionError) as broken:
        await _say(conversation, "Count")
    assert say(broken.value) == "the backend stopped while answering"
    await _say(conversation, "Hi")
    assert [turn["content"] for turn in server.chats[1].body["messages"]] == ["Hi"]


async def test_a_stopped_answer_is_remembered_as_far_as_it_came(server: ScriptedServer) -> None:
    server.script = [Words(("One ", "two ", "three"), pause_s=0.05), Words(("Fine.",))]
    conversation = _with(server)
    async with aclosing(conversation.ask("Count")) as pieces:
        assert await anext(pieces) == "One "
    await _say(conversation, "Go on")
    assert [turn["content"] for turn in server.chats[1].body["messages"]] == ["Count", "One ", "Go on"]


async def test_a_cancelled_answer_before_its_first_word_never_was(server: ScriptedServer) -> None:
    server.script = [Words(("late",), pause_s=0.0), Words(("Fine.",))]
    conversation = _with(server)
    asking = asyncio.create_task(_say(conversation, "Hi"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await _say(conversation, "Again")
    assert [turn["content"] for turn in server.chats[-1].body["messages"]] == ["Again"]


async def test_a_picture_goes_before_the_question(server: ScriptedServer) -> None:
    png = io.BytesIO()
    Image.new("RGB", (4, 4)).save(png, "PNG")
    conversation = _with(server)
    assert [piece async for piece in conversation.ask("What is it?", image=png.getvalue())]
    picture, text = server.chats[0].body["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "What is it?"}


async def test_clearing_forgets(server: ScriptedServer) -> None:
    conversation = _with(server)
    await _say(conversation, "Hi")
    conversation.clear()
    await _say(conversation, "Who am I?")
    assert len(server.chats[1].body["messages"]) == 1


async def test_notes_go_before_a_question_once_and_are_not_carried_along(server: ScriptedServer) -> None:
    server.script = [Words(("A dog.",)), Words(("Brown.",))]
    conversation = _with(server)
    async for _ in conversation.ask("What did they see?", notes="10:00 yard: a dog"):
        pass
    await _say(conversation, "Which colour?")
    first, second = (chat.body["messages"] for chat in server.chats)
    assert first[0]["content"] == "10:00 yard: a dog\n\nWhat did they see?"
    assert [turn["content"] for turn in second] == ["What did they see?", "A dog.", "Which colour?"]

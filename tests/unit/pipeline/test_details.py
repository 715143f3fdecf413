"""Captions in JSON: asked for only where the server can be held to them, read as they stream in, whole or cut short."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.answer import JsonAnswer
from pipeline.details import SCHEMA, try_parse
from pipeline.events import Details, Reason
from pipeline.plain_text import plain
from tests.unit.pipeline.fakes import job
from tests.unit.pipeline.scripted_server import Refusal, ScriptedServer, Step, Whole, Words
from tests.unit.pipeline.test_captioner import Told, asking

JOB = replace(job("e1", [1], Reason.NEW_TRACK), wants_details=True)
ANSWER = {"title": "A visit", "description": 'He says "hello" 👋 and leaves.', "count": 2, "notable": True}
DETAILS = Details("A visit", 2, True)
PASSED = Whole('{"ok": true}')


def pieces(text: str, size: int = 3) -> tuple[str, ...]:
    return tuple(text[at : at + size] for at in range(0, len(text), size))


@given(description=st.text(), size=st.integers(1, 9), escapes=st.booleans())
def test_words_stream_out_of_the_json_in_any_pieces(description: str, size: int, escapes: bool) -> None:
    answer = JsonAnswer()
    raw = json.dumps(ANSWER | {"description": description}, ensure_ascii=escapes)
    assert "".join(answer.take(piece) for piece in pieces(raw, size)) == plain(description)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "A man.",
        "[]",
        json.dumps(ANSWER)[:-1],
        json.dumps(ANSWER | {"count": "two"}),
        json.dumps(ANSWER | {"count": True}),
        json.dumps(ANSWER | {"description": " "}),
        "[" * 100_000,
    ],
)
def test_what_is_not_what_was_asked_for_has_no_details(raw: str) -> None:
    assert try_parse(raw) is None


async def caption_of(script: list[Step], caplog: pytest.LogCaptureFixture) -> tuple[ScriptedServer, Told, list[object]]:
    """Two captions in a row."""
    captions: list[object] = []
    told = Told()
    with caplog.at_level(logging.WARNING):
        async with ScriptedServer(script) as server, asking(server.url) as captioner:
            for _ in range(2):
                told = Told()
                caption = await captioner.caption(JOB, told)
                captions.append((caption.text, caption.details))
    return server, told, captions


async def test_a_server_that_can_is_asked_for_json(caplog: pytest.LogCaptureFixture) -> None:
    server, told, captions = await caption_of([PASSED, Words(pieces(json.dumps(ANSWER)))], caplog)
    assert captions == [(ANSWER["description"], DETAILS)] * 2
    assert told.text == ANSWER["description"], "the page sees words, not JSON"
    probe, first, _ = server.chats
    assert "stream" not in probe.body
    assert first.body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert first.body["messages"][0]["content"][1]["text"].startswith(JOB.prompt + " Answer in JSON")
    assert caplog.text == ""


@pytest.mark.parametrize("probed", [Refusal(400, "unknown response_format"), Whole("I am fine."), Whole('{"ok": 1}')])
async def test_a_server_that_cannot_gives_plain_text_and_that_is_said_once(
    probed: Step, caplog: pytest.LogCaptureFixture
) -> None:
    server, _, captions = await caption_of([probed, Words()], caplog)
    assert captions == [("A man stands.", None)] * 2
    assert [("response_format" in chat.body) for chat in server.chats] == [True, False, False]
    assert caplog.text.count("offers no structured output") == 1


async def test_an_answer_cut_short_keeps_its_words(caplog: pytest.LogCaptureFixture) -> None:
    cut = json.dumps(ANSWER).split(" and leaves")[0]
    _, _, captions = await caption_of([PASSED, Words(pieces(cut), is_cut=True)], caplog)
    assert captions == [('He says "hello" 👋', None)] * 2

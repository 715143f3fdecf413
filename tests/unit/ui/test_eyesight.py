"""A model for text alone is noticed at the start."""

from __future__ import annotations

import pytest

from tests.unit.pipeline.scripted_server import Hangup, Refusal, ScriptedServer, Step, Whole
from ui.commands.eyesight import GREY, blindness


@pytest.mark.parametrize(
    ("step", "is_blind"),
    [
        (Refusal(400, "this model takes no images"), True),
        (Refusal(422, "content must be a string"), True),
        (Whole("Grey."), False),
        (Refusal(503, "loading"), False),
        (Refusal(429, "busy"), False),
        (Hangup(), False),
    ],
)
async def test_a_text_only_model_is_told_of(step: Step, is_blind: bool) -> None:
    async with ScriptedServer([step]) as server:
        said = await blindness(server.url, model=None, api_key=None)
        assert len(server.chats) == 1
        assert server.chats[0].body["messages"][0]["content"][0]["image_url"]["url"] == GREY
    if not is_blind:
        assert said is None
        return
    assert said is not None
    assert said.startswith("scripted-vlm cannot describe pictures, so no caption will come about; name another model (")
    assert isinstance(step, Refusal)
    assert step.message in said
    assert "base64" not in said


async def test_an_engine_that_is_not_there_yet_or_serves_nothing_is_no_blind_one() -> None:
    async with ScriptedServer(models=()) as server:
        assert await blindness(server.url, model=None, api_key=None) is None
    assert await blindness(server.url, model="m", api_key=None) is None

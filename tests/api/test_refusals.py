"""Everything that can be wrong with a request: its status, the OpenAI error body, and that the engine lives on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import openai
import pytest

from backend.errors import Overloaded
from backend.server import fields
from tests.api.conftest import Scripted
from tests.api.scripted import IMAGE, scripted_limits

HI: list[Any] = [{"role": "user", "content": "hi"}]
Start = Callable[..., Scripted]
PATH = "/v1/chat/completions"


@pytest.fixture
def rig(scripted: Start) -> Scripted:
    return scripted("Hey")


def error_of(rig: Scripted, status: int, **fields: Any) -> dict[str, Any]:
    """The error for a chat body with these fields; the engine must still answer afterwards."""
    with rig.live.http() as http:
        reply = http.post(PATH, json={"model": "scripted", "messages": HI} | fields)
        assert reply.status_code == status, reply.text
        assert http.post(PATH, json={"model": "scripted", "messages": HI}).status_code == 200
    (name,) = reply.json()
    assert name == "error"
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    return reply.json()["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "0"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 1.5}, "min_p"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": 1}, "stop"),
        ({"stop": ["a"] * 1000}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"messages": [{"role": "user", "content": [{"text": "untyped"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [*HI, {"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]},
            "messages[1].content[0].image_url",
        ),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages"),
    ],
)
def test_a_bad_field_is_a_400_with_its_name(rig: Scripted, fields: dict[str, Any], param: str) -> None:
    error = error_of(rig, 400, **fields)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]


def test_too_many_stops_name_the_limit(rig: Scripted) -> None:
    assert error_of(rig, 400, stop=["a"] * 17)["message"] == "stop holds 17 strings; at most 16 are taken"
    with rig.live.http() as http:
        assert http.post(PATH, json={"model": "scripted", "messages": HI, "stop": ["z"] * 16}).status_code == 200


def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(rig: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    num_chars = 256 * len(IMAGE) + 1
    messages: Any = [{"role": "user", "content": "x" * num_chars}]

    def prepare(*_: object) -> None:
        raise AssertionError("too long to be looked at")

    with monkeypatch.context() as patch, rig.live.http() as http:
        patch.setattr(rig.adapter, "prepare", prepare)
        reply = http.post(PATH, json={"model": "scripted", "messages": messages})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert f"the {num_chars} characters of the messages" in reply.json()["error"]["message"]


def test_values_that_change_nothing_are_taken(rig: Scripted) -> None:
    with rig.live.http() as http:
        body = {
            "model": "scripted",
            "messages": HI,
            "n": 1,
            "logprobs": False,
            "presence_penalty": 0,
            "frequency_penalty": 0.0,
            "response_format": {"type": "text"},
            "tools": [],
            "tool_choice": "none",
            "logit_bias": None,
            "user": "someone",
            "store": False,
        }
        assert http.post(PATH, json=body).status_code == 200


def test_an_unknown_field_is_taken_and_logged_once_by_name(
    rig: Scripted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "_unknown_seen", set())  # which other tests may have filled
    caplog.set_level(logging.WARNING, logger="watchword.server")
    with rig.live.http() as http:
        for _ in range(2):
            body = {"model": "scripted", "messages": HI, "field_of_the_future": "its contents"}
            assert http.post(PATH, json=body).status_code == 200
    lines = [r.getMessage() for r in caplog.records if "field_of_the_future" in r.getMessage()]
    assert len(lines) == 1
    assert "its contents" not in lines[0]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b'{"model": "scripted", "messages": ['])
def test_malformed_json_is_a_400(rig: Scripted, body: bytes) -> None:
    with rig.live.http() as http:
        reply = http.post(PATH, content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model_is_a_404(rig: Scripted) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        rig.live.openai().chat.completions.create(model="gpt-9", messages=HI)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "gpt-9" in str(caught.value)
    assert "scripted" in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        rig.live.openai().models.retrieve("gpt-9")


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "numbers"),
    [(300, None, ("256", "301")), (255, None, ("256", "256")), (200, 56, ("256", "257", "201", "56"))],
)
@pytest.mark.parametrize("stream", [False, True])
def test_too_long_names_both_numbers(
    rig: Scripted, prompt_len: int, max_tokens: int | None, numbers: tuple[str, ...], stream: bool
) -> None:
    messages: Any = [{"role": "user", "content": "x" * prompt_len}]
    error = error_of(rig, 400, messages=messages, stream=stream, max_tokens=max_tokens)
    assert error["code"] == "context_length_exceeded"
    for number in numbers:
        assert number in error["message"]


def test_the_longest_that_fits_is_taken(rig: Scripted) -> None:
    messages: Any = [{"role": "user", "content": "x" * 200}]
    reply = rig.live.openai().chat.completions.create(
        model="scripted", messages=messages, max_tokens=55, extra_body={"ignore_eos": True}
    )
    assert reply.usage
    assert reply.usage.total_tokens == 256


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_bound_is_a_413(scripted: Start, chunked: bool) -> None:
    rig = scripted("Hey", max_request_bytes=2048)
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "x" * 4096}]}).encode()
    with rig.live.http() as http:
        reply = http.post(PATH, content=iter([body[:1500], body[1500:]]) if chunked else body)
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"
    assert "2048" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_overload_is_a_429_that_says_when_to_come_back(scripted: Start, stream: bool) -> None:
    rig = scripted("Hey")

    def refuse(request: object) -> None:
        raise Overloaded("7 requests are waiting already", retry_after_s=2.5)

    rig.live.service.engine._scheduler.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(openai.RateLimitError, match="7 requests") as caught:
        rig.live.openai().chat.completions.create(model="scripted", messages=HI, stream=stream)
    assert caught.value.response.headers["retry-after"] == "3"


async def test_a_full_queue_refuses_the_next(scripted: Start) -> None:
    rig = scripted("Hey", limits=scripted_limits(max_num_seqs=1, max_num_waiting=2), step_s=0.002)
    async with rig.live.async_openai() as client:
        replies = await asyncio.gather(
            *(client.chat.completions.create(model="scripted", messages=HI) for _ in range(12)),
            return_exceptions=True,
        )
    refused = [r for r in replies if isinstance(r, openai.RateLimitError)]
    assert refused
    # Two wait; a third is let in only if the first was running before the others came.
    assert len(replies) - len(refused) >= 2
    assert not [r for r in replies if isinstance(r, BaseException) and not isinstance(r, openai.RateLimitError)]


def test_unknown_paths_and_methods_answer_in_the_same_format(rig: Scripted) -> None:
    with rig.live.http() as http:
        for reply, status in ((http.get("/v1/nothing"), 404), (http.get(PATH), 405)):
            assert reply.status_code == status
            assert reply.json()["error"]["type"] == "invalid_request_error"


def test_contents_appear_in_no_log(rig: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret: Any = [{"role": "user", "content": "the secret word"}]
    rig.live.openai().chat.completions.create(model="scripted", messages=secret)
    error_of(rig, 400, messages=[*secret, {"role": "user", "content": ["the secret word"]}])
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("watchword", "uvicorn"))]
    assert any("prompt_tokens=16" in line and "completion_tokens=3" in line for line in ours)
    assert not any("secret" in line or "Hey" in line for line in ours)

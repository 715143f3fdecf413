"""Chat completions through the official client: answers, streams, stops, usage, classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from backend.conversation import SamplingDefaults
from backend.types.request import RequestClass
from tests.api.conftest import Live, Scripted
from tests.api.scripted import scripted_limits

HI: list[Any] = [{"role": "user", "content": "hi"}]
Start = Callable[..., Scripted]


def stream_text(live: Live, **fields: Any) -> tuple[list[str], str | None]:
    """The pieces of a streamed answer, and its finish reason."""
    pieces, reason = [], None
    for chunk in live.openai().chat.completions.create(model="scripted", messages=HI, stream=True, **fields):
        choice = chunk.choices[0]
        pieces.append(choice.delta.content or "")
        reason = choice.finish_reason or reason
    return pieces, reason


def test_an_answer(scripted: Start) -> None:
    reply = scripted("Hello there.").live.openai().chat.completions.create(model="scripted", messages=HI)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == "scripted"
    assert reply.choices[0].message.content == "Hello there."
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (3, 12, 15)


def test_a_stream_says_the_same(scripted: Start) -> None:
    live = scripted("Grüße, 世界 🌍!", step_s=0.005).live
    pieces, reason = stream_text(live)
    assert "".join(pieces) == "Grüße, 世界 🌍!"
    assert reason == "stop"
    assert len([p for p in pieces if p]) > 5, "it came in one piece"
    assert not any("\ufffd" in p for p in pieces), "half a character was sent"


@pytest.mark.parametrize("stream", [False, True])
def test_usage_tells_what_the_prefix_cache_had(scripted: Start, stream: bool) -> None:
    """Blocks of 16: of a prompt of 41 tokens two are found, never its last token."""
    client = scripted("Hey").live.openai()
    said: list[Any] = [{"role": "user", "content": "x" * 40}]

    def cached() -> list[int | None]:
        if stream:
            options: Any = {"stream": True, "stream_options": {"include_usage": True}}
            *_, last = client.chat.completions.create(model="scripted", messages=said, **options)
            chat: Any = last.usage
        else:
            chat = client.chat.completions.create(model="scripted", messages=said).usage
        assert chat.prompt_tokens == 41
        return [chat.prompt_tokens_details.cached_tokens]

    assert [cached(), cached()] == [[0], [32]]


def test_other_endpoints_tell_it_too(scripted: Start) -> None:
    client = scripted("Hey").live.openai()
    for expected in (0, 32):
        usage = client.responses.create(model="scripted", input="x" * 40).usage
        assert usage
        assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (41, expected)
    for expected in (0, 32 + 32):
        reply = client.completions.create(model="scripted", prompt=["y" * 40, "z" * 40]).usage
        assert reply
        assert reply.prompt_tokens_details
        assert (reply.prompt_tokens, reply.prompt_tokens_details.cached_tokens) == (80, expected)


async def test_the_async_client_and_many_at_once(scripted: Start) -> None:
    live = scripted("one after the other", step_s=0.001).live
    async with live.async_openai() as client:
        replies = await asyncio.gather(
            *(client.chat.completions.create(model="scripted", messages=HI) for _ in range(12))
        )
    assert {r.choices[0].message.content for r in replies} == {"one after the other"}
    assert len({r.id for r in replies}) == 12


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("wor", "Hello "),
        ("lo w", "Hel"),
        (["zzz", "rld", "or"], "Hello w"),
        ("Hello", ""),
        ("xyz", "Hello worlds"),
        ("ldx", "Hello worlds"),
        ("worlds", "Hello "),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_string_stops_across_tokens(scripted: Start, stop: str | list[str], text: str, stream: bool) -> None:
    rig = scripted("Hello worlds")
    if stream:
        pieces, reason = stream_text(rig.live, stop=stop)
        assert "".join(pieces) == text
    else:
        reply = rig.live.openai().chat.completions.create(model="scripted", messages=HI, stop=stop)
        assert reply.choices[0].message.content == text
        reason = reply.choices[0].finish_reason
    assert reason == "stop"
    rig.live.wait_until(lambda: rig.live.service.engine.stats().num_running == 0)


def test_a_string_stop_ends_the_work_too(scripted: Start) -> None:
    rig = scripted("abc", step_s=0.005)
    reply = rig.live.openai().chat.completions.create(
        model="scripted", messages=HI, stop="c", max_tokens=200, extra_body={"ignore_eos": True}
    )
    assert reply.choices[0].message.content == "ab"
    rig.live.wait_until(lambda: rig.live.service.engine.stats().num_blocks_used == 0)
    assert len(rig.runner.steps) < 10


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(scripted: Start, name: str) -> None:
    limit: dict[str, Any] = {name: 3}
    reply = scripted("Hello").live.openai().chat.completions.create(model="scripted", messages=HI, **limit)
    assert reply.choices[0].message.content == "Hel"
    assert reply.choices[0].finish_reason == "length"


def test_half_a_character_at_the_end_is_shown_as_such(scripted: Start) -> None:
    live = scripted("aé").live
    reply = live.openai().chat.completions.create(model="scripted", messages=HI, max_tokens=2)
    assert reply.choices[0].message.content == "a\ufffd"
    assert "".join(stream_text(live, max_tokens=2)[0]) == "a\ufffd"


def test_ignore_eos_goes_on_to_the_end_of_the_context(scripted: Start) -> None:
    live = scripted("ab").live
    reply = live.openai().chat.completions.create(model="scripted", messages=HI, extra_body={"ignore_eos": True})
    assert reply.usage
    assert reply.usage.total_tokens == 256
    assert reply.choices[0].finish_reason == "length"


def test_the_usage_chunk_comes_when_asked_for_and_last(scripted: Start) -> None:
    client = scripted("Hey").live.openai()
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 3
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    unasked = list(client.chat.completions.create(model="scripted", messages=HI, stream=True))
    assert all(c.usage is None and c.choices for c in unasked)


def test_the_raw_stream_is_server_sent_events(scripted: Start) -> None:
    with scripted("Hey").live.http() as http:
        reply = http.post("/v1/chat/completions", json={"model": "scripted", "messages": HI, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.text.strip().split("\n\n")
    assert all(line.startswith("data: {") for line in lines[:-1])
    assert lines[-1] == "data: [DONE]"
    assert '"usage"' not in reply.text


def test_every_sampling_field_reaches_the_engine(scripted: Start) -> None:
    rig = scripted("Hey")
    rig.live.openai().chat.completions.create(
        model="scripted",
        messages=HI,
        temperature=0.25,
        top_p=0.5,
        seed=7,
        stop=["x"],
        max_tokens=9,
        extra_body={"top_k": 3, "ignore_eos": True},
    )
    sampling = rig.runner.steps[0].chunks[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.25, 0.5, 3, 7)
    assert (sampling.stop, sampling.max_tokens, sampling.ignore_eos) == (("x",), 9, True)
    assert sampling.stop_token_ids == frozenset()


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        (None, (1.0, 1.0, 0, 256 - 3)),
        (SamplingDefaults(0.6, 0.95, 20), (0.6, 0.95, 20, 256 - 3)),
        (SamplingDefaults(max_tokens=5), (1.0, 1.0, 0, 5)),
        (SamplingDefaults(max_tokens=5000), (1.0, 1.0, 0, 256 - 3)),
    ],
)
def test_defaults_are_the_apis_unless_the_model_has_its_own(
    scripted: Start, defaults: SamplingDefaults | None, expected: tuple[float, float, int, int]
) -> None:
    rig = scripted("Hey", defaults=defaults)
    rig.live.openai().chat.completions.create(model="scripted", messages=HI)
    sampling = rig.runner.steps[0].chunks[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == expected
    assert sampling.stop_token_ids == rig.adapter.spec.eos_token_ids


def test_roles_and_turns(scripted: Start) -> None:
    client = scripted("Hey").live.openai()
    first = client.chat.completions.create(model="scripted", messages=HI).choices[0].message
    turns: list[Any] = [
        {"role": "system", "content": "be kind"},
        {"role": "developer", "content": [{"type": "text", "text": "and brief"}]},
        *HI,
        first.model_dump(),
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    reply = client.chat.completions.create(model="scripted", messages=turns)
    assert reply.usage
    texts = ["be kind", "and brief", "hi", "Hey", "", "a\nb"]
    assert reply.usage.prompt_tokens == sum(len(t) + 1 for t in texts)


async def test_cameras_wait_behind_chats(scripted: Start) -> None:
    rig = scripted("Hey", limits=scripted_limits(max_num_seqs=1))
    engine = rig.live.service.engine
    rig.runner.hold()
    async with rig.live.async_openai() as client:
        tasks = []
        for prompt, request_class in (("first", "interactive"), ("camera", "background"), ("chat", "interactive")):
            call = client.chat.completions.create(
                model="scripted",
                messages=[{"role": "user", "content": prompt}],
                extra_headers={"X-Request-Class": request_class},
            )
            tasks.append(asyncio.create_task(call))
            arrived = len(tasks)
            await asyncio.to_thread(rig.live.wait_until, lambda n=arrived: len(engine._waiters) == n)
        rig.runner.release()
        replies = await asyncio.gather(*tasks)
    assert [r.choices[0].message.content for r in replies] == ["Hey"] * 3
    prompts = [c.token_ids for step in rig.runner.steps for c in step.chunks if c.start == 0]
    assert [rig.adapter.core.decode(list(ids)) for ids in prompts] == ["first", "chat", "camera"]
    text = engine.metrics.render().decode()
    assert f'e2e_request_latency_seconds_count{{request_class="{RequestClass.BACKGROUND.value}"}} 1.0' in text


def test_an_unknown_class_is_refused(scripted: Start) -> None:
    client = scripted().live.openai()
    with pytest.raises(openai.BadRequestError, match="interactive or background"):
        client.chat.completions.create(model="scripted", messages=HI, extra_headers={"X-Request-Class": "urgent"})

"""How often, when, and for how long the worker insists."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from pipeline.captioner import CaptionError, OpenAICaptioner
from pipeline.config import PipelineConfig, RetryConfig
from pipeline.events import Caption
from pipeline.retry import caption_with_retries, wait_s
from tests.unit.pipeline.scripted_server import Hangup, Refusal, ScriptedServer, Silence, Step, Words
from tests.unit.pipeline.test_captioner import JOB, Told

QUICK = RetryConfig(delays_s=(0.05, 0.1, 0.2), deadline_s=5.0)
BUSY = CaptionError("busy", retryable=True)


@pytest.mark.parametrize(
    ("num_tries", "error", "roll", "expected"),
    [
        (1, BUSY, 0.5, 1.0),
        (2, BUSY, 0.5, 2.0),
        (3, BUSY, 0.5, 4.0),
        (4, BUSY, 0.5, None),
        (1, BUSY, 0.0, 0.8),
        (1, BUSY, 1.0, 1.2),
        (1, CaptionError("no", retryable=False), 0.5, None),
        (1, CaptionError("wait", retryable=True, retry_after_s=9), 0.0, 9.0),
        (1, CaptionError("wait", retryable=True, retry_after_s=10), 1.0, 12.0),
        (2, CaptionError("go on", retryable=True, retry_after_s=0), 1.0, 0.0),
        (1, CaptionError("wait", retryable=True, retry_after_s=3600), 0.5, None),
        (1, CaptionError("no", retryable=False, retry_after_s=1), 0.5, None),
    ],
)
def test_waits(num_tries: int, error: CaptionError, roll: float, expected: float | None) -> None:
    assert wait_s(RetryConfig(), num_tries, error, lambda: roll) == (expected and pytest.approx(expected))


async def insist(
    script: list[Step], config: RetryConfig = QUICK
) -> tuple[Caption | CaptionError, ScriptedServer, Told]:
    told = Told()
    async with ScriptedServer(script) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.url, model="m", retry=config))
        try:
            return await caption_with_retries(captioner, JOB, told, config), server, told
        except CaptionError as error:
            return error, server, told
        finally:
            await captioner.close()


@pytest.mark.parametrize(
    "script",
    [
        [Refusal(503), Words()],
        [Refusal(429), Refusal(500), Words()],
        [Hangup(), Refusal(408), Refusal(409), Words()],
        [Words(words=("A man", " ru"), breaks=True), Words()],
        [Words(words=("A man",), ends_with={"message": "engine died"}), Words()],
    ],
    ids=lambda script: f"{len(script)} tries",
)
async def test_what_passes_is_waited_for(script: list[Step]) -> None:
    num_steps = len(script)
    result, server, _ = await insist(script)
    assert isinstance(result, Caption)
    assert result.text == "A man stands."
    assert len(server.chats) == num_steps
    gaps = [later.t - sooner.t for sooner, later in itertools.pairwise(server.chats)]
    for gap, delay in zip(gaps, QUICK.delays_s, strict=False):
        assert delay * 0.8 <= gap < delay * 1.2 + 0.6


async def test_four_failures_are_enough_and_the_last_is_told() -> None:
    result, server, _ = await insist(
        [Refusal(500, "one"), Refusal(500, "two"), Refusal(500, "three"), Refusal(503, "last")]
    )
    assert isinstance(result, CaptionError)
    assert "answered 503: last" in str(result)
    assert len(server.chats) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    result, server, _ = await insist([Refusal(status), Words()])
    assert isinstance(result, CaptionError)
    assert len(server.chats) == 1


async def test_retry_after_is_obeyed() -> None:
    _, server, _ = await insist([Refusal(429, headers=(("Retry-After", "0.7"),)), Words()])
    assert server.chats[1].t - server.chats[0].t >= 0.7


async def test_a_wish_beyond_the_deadline_ends_it_at_once() -> None:
    started = time.monotonic()
    result, server, _ = await insist([Refusal(429, headers=(("Retry-After", "600"),)), Words()])
    assert isinstance(result, CaptionError)
    assert len(server.chats) == 1
    assert time.monotonic() - started < 3


async def test_silence_ends_at_the_deadline() -> None:
    started = time.monotonic()
    config = RetryConfig(delays_s=(0.01,) * 50, deadline_s=0.5)
    async with ScriptedServer([Silence()]) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.url, model="m", retry=config))
        with pytest.raises(CaptionError):
            await caption_with_retries(captioner, JOB, Told(), config)
        assert time.monotonic() - started < 3
        assert len(server.chats) == 1
        await asyncio.wait_for(server.chats[0].dropped.wait(), 5)
        await captioner.close()


async def test_tries_do_not_outlive_the_deadline() -> None:
    result, server, _ = await insist([Refusal(503)], RetryConfig(delays_s=(0.2,) * 50, deadline_s=0.7))
    assert isinstance(result, CaptionError)
    assert 2 <= len(server.chats) <= 5


async def test_whoever_talks_may_finish_after_the_deadline() -> None:
    slow = Words(words=tuple("abcdefgh"), pause_s=0.1)
    result, _, told = await insist([slow], RetryConfig(deadline_s=0.4))
    assert isinstance(result, Caption)
    assert result.text == told.text == "abcdefgh"


async def test_a_backend_that_somebody_restarts_is_waited_for_until_the_deadline() -> None:
    """More refusals than there are waits, and before each further try the word that it is back is awaited."""
    waited: list[int] = []

    async def ready() -> None:
        waited.append(len(server.chats))
        if len(waited) == 2:
            await asyncio.sleep(0.3)

    config = RetryConfig(delays_s=(0.02,), deadline_s=10.0, until_deadline=True)
    async with ScriptedServer([*[Hangup()] * 4, Words()]) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.url, model="m", retry=config))
        caption = await caption_with_retries(captioner, JOB, Told(), config, ready)
        await captioner.close()
    assert caption.text == "A man stands."
    assert waited == [1, 2, 3, 4], "not before the first try"
    assert server.chats[2].t - server.chats[1].t >= 0.3


async def test_a_backend_that_never_comes_back_ends_at_the_deadline() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    config = RetryConfig(delays_s=(0.01,), deadline_s=0.4, until_deadline=True)
    async with ScriptedServer([Hangup()]) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.url, model="m", retry=config))
        with pytest.raises(CaptionError, match=r"no words within 0\.4 s; last: .*broke off"):
            await caption_with_retries(captioner, JOB, Told(), config, never)
        await captioner.close()
    assert len(server.chats) == 1

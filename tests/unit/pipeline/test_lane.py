"""What a lane tells while its request is tried and tried again."""

from __future__ import annotations

import asyncio

from pipeline.captioner import OpenAICaptioner
from pipeline.config import PipelineConfig, RetryConfig
from pipeline.events import EventStatus, Reason
from pipeline.feed import CaptionDelta, EventEnded, Feed
from pipeline.lane import CaptionLane
from pipeline.ledger import Ledger
from tests.unit.pipeline.fakes import job
from tests.unit.pipeline.scripted_server import Refusal, ScriptedServer, Words


async def test_after_a_broken_stream_only_what_is_new_is_told() -> None:
    script = [Words(words=("A man ", "stan"), breaks=True), Refusal(503), Words(words=("A m", "an stands", " still."))]
    retry, feed, sent = RetryConfig(delays_s=(0.01, 0.01)), Feed(), list[str]()
    async with ScriptedServer(script) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.url, model="m", retry=retry))
        ledger = Ledger(store=None, jsonl=None, feed=feed, on_kept=lambda _: None)
        lane = CaptionLane(captioner, ledger, feed, retry, lambda event_id, _: sent.append(event_id))
        ledger.start()
        with feed.subscribe() as news:
            running = asyncio.create_task(lane.run())
            lane.submit(job("e1", [1], Reason.NEW_TRACK))
            told = []
            async for item in news:
                told.append(item)
                if isinstance(item, EventEnded):
                    break
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ledger.close()
        await captioner.close()
    deltas = [item.text for item in told if isinstance(item, CaptionDelta)]
    assert deltas == ["A man ", "stan", "ds", " still."]
    assert isinstance(told[-1], EventEnded)
    event = told[-1].event
    assert (event.status, event.caption) == (EventStatus.OK, "A man stands still.")
    assert sent == ["e1"] * 3


async def test_what_waits_for_a_backend_to_start_can_still_be_superseded_and_does_not_fail() -> None:
    retry, feed, started = RetryConfig(), Feed(), asyncio.Event()
    async with ScriptedServer([Words(words=("A man.",))]) as server:
        captioner = OpenAICaptioner(PipelineConfig("none.pt", server.url, model="m"))
        ledger = Ledger(store=None, jsonl=None, feed=feed, on_kept=lambda _: None)

        async def ready() -> None:
            await started.wait()

        lane = CaptionLane(captioner, ledger, feed, retry, lambda *_: None, ready)
        ledger.start()
        ended = []
        with feed.subscribe() as news:
            running = asyncio.create_task(lane.run())
            lane.submit(job("old", [1], Reason.INTERVAL))
            await asyncio.sleep(0.05)
            lane.submit(job("new", [1], Reason.INTERVAL))
            await asyncio.sleep(0.05)
            assert server.asked == []
            started.set()
            async for item in news:
                if isinstance(item, EventEnded):
                    ended.append((item.event.event_id, item.event.status))
                    if len(ended) == 2:
                        break
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ledger.close()
        await captioner.close()
    assert ended == [("old", EventStatus.SUPERSEDED), ("new", EventStatus.OK)]

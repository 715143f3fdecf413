"""Every event ends exactly once, is kept before it is announced, and carries the times it reached."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.ledger
from pipeline.archive import StoreError
from pipeline.backlog import Backlog
from pipeline.events import Caption, Event, EventStatus, Reason
from pipeline.feed import CaptionQueued, EventEnded, Feed, FeedItem, StoreChanged
from pipeline.jsonl import JsonlWriter
from pipeline.ledger import Ledger
from pipeline.store import EventStore
from tests.unit.pipeline.fakes import job, track
from tests.unit.pipeline.test_jsonl import OK_EVENT
from tests.unit.pipeline.waiting import until

OPS = st.lists(
    st.tuples(st.sampled_from(["open", "sent", "words", "pause", *EventStatus]), st.integers(0, 5)), max_size=40
)


def caption(text: str = "Somebody stands.") -> Caption:
    return Caption("cam", 0, 1.0, text, "m", 2.0, 3.0, 4.0)


class MemoryStore:
    """Keeps events in a list, or refuses each."""

    def __init__(self, refuses: bool = False) -> None:
        self.kept: list[Event] = []
        self.refuses = refuses

    def add(self, event: Event, jpeg: bytes) -> Event:
        if self.refuses:
            raise StoreError("data directory /full cannot be written: disk full")
        kept = replace(event, jpeg_path=f"{event.event_id}.jpg")
        self.kept.append(kept)
        return kept


async def news_of(feed: Feed, ledger: Ledger, work: object) -> list[FeedItem]:
    """What the feed said while `work` went on and the ledger closed."""
    with feed.subscribe(10_000) as news:
        ledger.start()
        await work  # pyright: ignore[reportGeneralTypeIssues]
        await ledger.close()
        news.close()
        return [item async for item in news]


@settings(max_examples=150, deadline=None)
@given(ops=OPS)
def test_whatever_happens_each_event_ends_once(ops: list[tuple[str, int]]) -> None:
    feed, store, told = Feed(), MemoryStore(), list[Event]()
    opened: set[str] = set()

    async def work(ledger: Ledger) -> None:
        for number, (op, name) in enumerate(ops):
            event_id = f"e{name}"
            if op == "open" and event_id not in opened:
                opened.add(event_id)
                ledger.open(job(event_id, [1], Reason.NEW_TRACK))
            elif op == "sent":
                ledger.note_sent(event_id, float(number))
            elif op == "words":
                ledger.note_words(event_id, float(number))
            elif op == "pause":
                await asyncio.sleep(0)
            elif op in tuple(EventStatus):
                status = EventStatus(op)
                ledger.try_end(event_id, status, caption=caption() if status is EventStatus.OK else None)

    async def main() -> list[FeedItem]:
        ledger = Ledger(store=store, jsonl=None, feed=feed, on_kept=told.append)
        return await news_of(feed, ledger, work(ledger))

    news = asyncio.run(main())
    ended = [item.event for item in news if isinstance(item, EventEnded)]
    assert sorted(event.event_id for event in ended) == sorted(opened)
    assert ended == store.kept == told, "kept as announced, in the same order, and its owner was told"
    for event in ended:
        assert (event.caption is not None) == (event.status is EventStatus.OK)
        first_ended = next(n for n, item in enumerate(news) if item == EventEnded(event))
        queued = next(
            n for n, i in enumerate(news) if isinstance(i, CaptionQueued) and i.selection.event_id == event.event_id
        )
        assert queued < first_ended


async def test_an_event_is_kept_before_it_is_announced(tmp_path: Path) -> None:
    feed, lines = Feed(), tmp_path / "out.jsonl"
    store, writer = EventStore(tmp_path), JsonlWriter(lines)
    seen_by_then: list[bool] = []

    def look(event: Event) -> None:
        seen_by_then.append(store.get(event.event_id) == event and len(lines.read_text().splitlines()) == 1)

    ledger = Ledger(store=store, jsonl=writer, feed=feed, on_kept=look)

    async def work() -> None:
        ledger.open(job("e1", [1], Reason.NEW_TRACK))
        assert ledger.try_end("e1", EventStatus.OK, caption=caption())

    await news_of(feed, ledger, work())
    assert seen_by_then == [True]
    assert store.jpeg("e1") == b"jpeg of e1"


async def test_the_times_of_the_last_try_count() -> None:
    feed, store = Feed(), MemoryStore()
    ledger = Ledger(store=store, jsonl=None, feed=feed, on_kept=lambda _: None)

    async def work() -> None:
        for event_id in ("broken", "refused"):
            ledger.open(job(event_id, [4, 7], Reason.INTERVAL))
            ledger.note_sent(event_id, 1.0)
            ledger.note_words(event_id, 1.5)
            ledger.note_sent(event_id, 5.0)
        ledger.note_words("broken", 6.0)
        ledger.note_words("broken", 7.0)
        for event_id in ("broken", "refused"):
            ledger.try_end(event_id, EventStatus.FAILED, error="gone")

    await news_of(feed, ledger, work())
    broken, refused = store.kept
    assert (broken.t_sent, broken.t_first_token, broken.t_last_token) == (5.0, 6.0, 7.0)
    assert (refused.t_sent, refused.t_first_token, refused.t_last_token) == (5.0, None, None)
    assert (broken.track_ids, broken.boxes) == ((4, 7), (track(4).box, track(7).box))
    assert (broken.reason, broken.error, broken.caption, broken.model) == (Reason.INTERVAL, "gone", None, None)


async def test_a_full_disk_delays_the_record_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announced without its record, visibly; stored, in order, as soon as there is room."""
    monkeypatch.setattr(pipeline.ledger, "RETRY_S", 0.01)
    feed, store = Feed(), MemoryStore(refuses=True)
    ledger = Ledger(store=store, jsonl=None, feed=feed, on_kept=lambda _: None)

    async def work() -> None:
        for event_id in ("e1", "e2"):
            ledger.open(job(event_id, [1], Reason.NEW_TRACK))
            ledger.try_end(event_id, EventStatus.OK, caption=caption())
        await asyncio.sleep(0.05)
        assert store.kept == []
        store.refuses = False
        await until(lambda: len(store.kept) == 2)
        ledger.open(job("e3", [1], Reason.NEW_TRACK))
        ledger.try_end("e3", EventStatus.OK, caption=caption())

    news = await news_of(feed, ledger, work())
    ended = [item.event for item in news if isinstance(item, EventEnded)]
    assert [(event.event_id, event.jpeg_path) for event in ended] == [("e1", None), ("e2", None), ("e3", "e3.jpg")]
    assert [event.event_id for event in store.kept] == ["e1", "e2", "e3"]
    refusal = "data directory /full cannot be written: disk full"
    assert [item for item in news if isinstance(item, StoreChanged)] == [
        StoreChanged(refusal, 1, 0),
        StoreChanged(refusal, 2, 0),
        StoreChanged("", 0, 0),
    ]


async def test_what_waits_for_the_store_is_offered_once_more_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    for refuses_to_the_end in (False, True):
        store = MemoryStore(refuses=True)
        ledger = Ledger(store=store, jsonl=None, feed=Feed(), on_kept=lambda _: None)
        ledger.start()
        ledger.open(job("e1", [1], Reason.NEW_TRACK))
        ledger.try_end("e1", EventStatus.CANCELLED)
        await asyncio.sleep(0.05)
        store.refuses = refuses_to_the_end
        await ledger.close()
        assert len(store.kept) == (0 if refuses_to_the_end else 1)
    assert caplog.messages == ["1 events are not stored: data directory /full cannot be written: disk full"]


def test_a_backlog_is_bounded_and_loses_the_oldest() -> None:
    backlog = Backlog(max_bytes=100)
    for number in range(4):
        backlog.put(replace(OK_EVENT, event_id=f"e{number}"), b"x" * 40)
    assert (len(backlog), backlog.num_lost) == (2, 2)
    backlog.put(replace(OK_EVENT, event_id="huge"), b"x" * 500)
    assert (len(backlog), backlog.num_lost) == (1, 4), "the newest stays whatever its size"
    assert backlog.oldest()[0].event_id == "huge"

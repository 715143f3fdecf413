"""What the terminal says of the feed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from camera_sources.base import SourceState, SourceStatus
from pipeline.events import EventStatus
from pipeline.feed import CameraChanged, Feed, StoreChanged
from tests.unit.ui.news import ended, queued, seen
from ui.commands.news import News, describe_event

CONNECTING, LIVE, STALE, DOWN, ENDED = (
    SourceState.CONNECTING,
    SourceState.LIVE,
    SourceState.STALE,
    SourceState.DOWN,
    SourceState.ENDED,
)


def changed(state: SourceState, reason: str = "", camera: str = "yard") -> CameraChanged:
    return CameraChanged(camera, SourceStatus(state, reason), detector_fps=5.0)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def news(said: list[str]) -> News:
    return News(said.append)


def test_every_change_of_a_camera_is_one_line_with_its_reason(news: News, said: list[str]) -> None:
    for item in (
        changed(CONNECTING),
        changed(DOWN, "connection refused"),
        changed(DOWN, "connection refused"),  # reported every second; said once
        changed(LIVE),
        changed(LIVE),
        changed(STALE, "no picture for 3 s"),
        changed(LIVE),
        changed(ENDED, "yard.mp4 breaks off after 3 of 9 frames"),
    ):
        news.take(item)
    assert said == [
        "yard is down: connection refused (trying again)",
        "yard is live",
        "yard is silent: no picture for 3 s",
        "yard is live again",
        "yard has ended: yard.mp4 breaks off after 3 of 9 frames",
    ]


def test_a_camera_that_was_never_reached_is_told_and_a_file_that_plays_is_not(news: News, said: list[str]) -> None:
    news.take(changed(LIVE, camera="clip"))
    news.take(changed(DOWN, "host name unknown", camera="yard"))
    assert said == ["yard is down: host name unknown (trying again)"]


def test_an_event_is_one_line_in_words(news: News, said: list[str]) -> None:
    for item in (seen(1), queued("a"), ended("a", caption="A man\nwaits.")):
        news.take(item)
    news.take(ended("b", EventStatus.FAILED, error="no answer from the engine at http://x/v1"))
    news.take(ended("c", EventStatus.SUPERSEDED))
    assert said == [
        "door at 0.0 s, someone new: A man waits.  [2.0 s after the picture]",
        "door at 0.0 s, someone new: not described: no answer from the engine at http://x/v1",
        "door at 0.0 s, someone new: replaced by a newer picture",
    ]


def test_a_zone_and_a_doubtful_count_are_told() -> None:
    event = replace(ended("e", caption="Two men wait.").event, zone="drive", count_mismatch=True)
    assert describe_event(event).startswith(
        "door at 0.0 s, someone new in drive: Two men wait.  [the detector counts 1]"
    )


def test_the_summary_counts_what_became_of_the_events(news: News) -> None:
    assert news.summary("out.jsonl") == "0 events in out.jsonl"
    news.take(ended("a"))
    assert news.summary("-") == "1 event: 1 captioned"
    news.take(ended("b"))
    news.take(ended("c", EventStatus.FAILED))
    assert news.summary("out.jsonl") == "3 events in out.jsonl: 2 captioned, 1 failed"


async def test_what_was_published_is_told_before_it_ends(news: News, said: list[str]) -> None:
    feed = Feed()
    with feed.subscribe() as subscription:
        telling = asyncio.create_task(news.follow(subscription))
        feed.publish(ended("a"))
        subscription.close()
        await asyncio.wait_for(telling, 5)
    assert len(said) == 1


def test_a_store_in_trouble_is_told_once_and_its_recovery_too(news: News, said: list[str]) -> None:
    for waiting in (1, 2, 3):
        news.take(StoreChanged("the disk is full", waiting, 0))
    news.take(StoreChanged("", 0, 2))
    assert said == [
        "events are not being stored: the disk is full (they wait in memory; an end loses them)",
        "events are stored again; 2 were lost for lack of room",
    ]

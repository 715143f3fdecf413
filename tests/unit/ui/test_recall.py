"""What a chat is told of the cameras: the newest captions and those that speak of what is asked, few and short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.events import EventStatus
from pipeline.store import EventStore
from tests.unit.ui.news import ended
from ui.web.recall import LONGEST_NOTE, NEWEST, RELATED, as_notes, recall

T0 = 1_700_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore(tmp_path)


def keep(store: EventStore, name: str, caption: str, minute: int, status: EventStatus = EventStatus.OK) -> None:
    event = ended(name, status, caption, error=None if status is EventStatus.OK else "down").event
    store.add(replace(event, t_wall=T0 + 60 * minute), b"")


def test_the_newest_and_the_related_in_the_order_of_time(store: EventStore) -> None:
    keep(store, "dog", "A brown dog digs.", 0)
    for minute in range(1, 20):
        keep(store, f"man{minute}", "A man walks.", minute)
    keep(store, "failed", "", 20, EventStatus.FAILED)
    events = [event.event_id for event in recall(store, "When did you see the DOG, please?")]
    assert events == ["dog", *(f"man{minute}" for minute in range(20 - NEWEST, 20))]
    assert [event.event_id for event in recall(store, 'what? "OR" -*')] == events[1:]
    assert len({event.event_id for event in recall(store, "Has any man walked?")}) == NEWEST + RELATED
    assert recall(store, "") != []


def test_an_event_is_told_once(store: EventStore) -> None:
    for minute in range(3):
        keep(store, f"dog{minute}", "A dog digs.", minute)
    assert [event.event_id for event in recall(store, "the dog")] == ["dog0", "dog1", "dog2"]


def test_a_store_without_captions_gives_nothing(store: EventStore) -> None:
    assert recall(store, "What did the cameras see?") == []


def test_notes_are_short_and_name_time_and_camera(store: EventStore) -> None:
    keep(store, "long", "A man\nwalks " + "on " * 200, 0)
    head, note, tail = as_notes(recall(store, "")).splitlines()
    assert "oldest first" in head
    assert "camera door: A man walks on" in note
    assert len(note) < LONGEST_NOTE + 40
    assert tail.startswith("It is ")

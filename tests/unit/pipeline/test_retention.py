"""Events go when they are too old or too much, the oldest first, with their pictures."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline.retention
from pipeline.archive import StoreError
from pipeline.config import RetentionConfig
from pipeline.retention import DAY_S, GB, expire, keep_tidy
from pipeline.store import EventStore
from pipeline.wall_clock import WallClock
from tests.unit.pipeline.test_jsonl import OK_EVENT
from tests.unit.pipeline.waiting import until

NOW = 1_800_000_000.0
PICTURE = b"x" * 10_000


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    """Twelve events, one a day; `e0` is from today, `e11` the oldest."""
    store = EventStore(tmp_path)
    for age in reversed(range(12)):
        store.add(replace(OK_EVENT, event_id=f"e{age}", t_wall=NOW - age * DAY_S - 1.0, caption="A wolf."), PICTURE)
    return store


@pytest.fixture(autouse=True)
def batches_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.retention, "BATCH", 5)


def names(store: EventStore) -> list[str]:
    return [event.event_id for event in store.recent(100)]


def files(data_dir: Path) -> list[str]:
    return sorted(path.stem for path in data_dir.glob("pictures/*/*.jpg"))


def test_what_is_too_old_goes_with_its_picture(store: EventStore, tmp_path: Path) -> None:
    assert expire(store, RetentionConfig(days=4, max_gb=None), NOW) == 8
    assert names(store) == ["e0", "e1", "e2", "e3"]
    assert files(tmp_path) == ["e0", "e1", "e2", "e3"]
    assert len(list(tmp_path.glob("pictures/*"))) == 4, "no empty folder of a day stays"
    assert len(store.search("wolf", 100)) == 4, "the index of words forgets, too"
    assert expire(store, RetentionConfig(days=4, max_gb=None), NOW) == 0


def test_of_what_is_too_much_the_oldest_goes(store: EventStore, tmp_path: Path) -> None:
    limit = store.num_bytes() - 3 * len(PICTURE)
    assert expire(store, RetentionConfig(days=None, max_gb=limit / GB), NOW) == 5
    assert names(store) == [f"e{age}" for age in range(7)]
    assert files(tmp_path) == [f"e{age}" for age in range(7)]
    assert store.num_bytes() <= limit


def test_a_limit_below_the_empty_database_ends(store: EventStore) -> None:
    assert expire(store, RetentionConfig(days=None, max_gb=0.0), NOW) == 12
    assert names(store) == []


def test_no_limit_removes_nothing(store: EventStore) -> None:
    assert expire(store, RetentionConfig(days=None, max_gb=None), NOW) == 0
    assert len(names(store)) == 12


def test_a_sweep_removes_what_a_killed_process_left_and_nothing_else(store: EventStore, tmp_path: Path) -> None:
    day = tmp_path / "pictures" / "2027-01-01"
    day.mkdir()
    left = [day / "nobody.jpg", day / "half.part", next(tmp_path.glob("pictures/*/e3.jpg")).with_name("also.jpg")]
    for path in left:
        path.write_bytes(b"x")
    assert store.sweep() == 0, "what is fresh may be about to get its row"
    hours_ago = time.time() - 7200
    for path in tmp_path.glob("pictures/*/*"):
        os.utime(path, (hours_ago, hours_ago))
    assert store.sweep() == 3
    assert files(tmp_path) == sorted(names(store))
    assert not day.exists()


class Refusing:
    """A store that refuses a few times."""

    def __init__(self, refusals: int) -> None:
        self.calls = 0
        self._refusals = refusals

    def num_bytes(self) -> int:
        return 0

    def remove_oldest(self, limit: int, before_wall: float | None = None) -> tuple[int, int]:
        self.calls += 1
        if self.calls <= self._refusals:
            raise StoreError("data directory /full cannot be written: disk full")
        return 0, 0

    def sweep(self) -> int:
        return 0


async def test_a_store_that_refuses_is_tried_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Refusing(3)
    tidying = asyncio.create_task(keep_tidy(store, RetentionConfig(), WallClock(None), every_s=0.01))
    await until(lambda: store.calls > 5)
    tidying.cancel()
    assert caplog.messages == ["old events stay: data directory /full cannot be written: disk full"]

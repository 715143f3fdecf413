"""The store: nothing announced is ever lost, and captions can be found again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from pipeline.events import Event, EventStatus, Reason
from pipeline.store import DATABASE, EventStore, StoreError
from tests.unit.pipeline.test_jsonl import FAILED_EVENT, OK_EVENT

REPOSITORY = Path(__file__).parents[3]


def event(name: str, caption: str | None = "A man walks.", camera: str = "door") -> Event:
    return replace(OK_EVENT, event_id=name, caption=caption, camera=camera)


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore(tmp_path)


def ids(events: list[Event]) -> list[str]:
    return [found.event_id for found in events]


@pytest.mark.parametrize("given", [OK_EVENT, FAILED_EVENT, replace(OK_EVENT, track_ids=(), boxes=())])
def test_an_event_comes_back_as_it_was(store: EventStore, given: Event) -> None:
    kept = store.add(given, b"a jpeg")
    assert kept == replace(given, jpeg_path=kept.jpeg_path)
    assert store.get(given.event_id) == kept
    assert type(store.get(given.event_id).status) is EventStatus  # pyright: ignore[reportOptionalMemberAccess]
    assert store.jpeg(given.event_id) == b"a jpeg"
    assert store.get("nobody") is None
    assert store.jpeg("nobody") is None


def test_recent_pages_backwards_and_by_camera(store: EventStore) -> None:
    for number in range(6):
        store.add(event(f"e{number}", camera="door" if number % 2 else "yard"), b"")
    assert ids(store.recent(3)) == ["e5", "e4", "e3"]
    assert ids(store.recent(3, before="e3")) == ["e2", "e1", "e0"]
    assert ids(store.recent(9, camera="door")) == ["e5", "e3", "e1"]
    assert ids(store.recent(9, before="e3", camera="door")) == ["e1"]
    assert ids(store.recent(9, before="never was")) == []
    following = [store.next_after(event_id) for event_id in ("e0", "e5", "never was")]
    assert [found and found.event_id for found in following] == ["e1", None, None]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bicycle", ["e1"]),
        ("BICYCLES", ["e1"]),
        ("man", ["e2", "e1"]),
        ("man red", ["e2"]),
        ("bicyc", ["e1"]),
        ("wolf", []),
        ("", []),
        ('"', []),
        ("man OR wolf", []),
        ("man) NEAR(", []),
        ("caption:man", []),
        ("-man *", ["e2", "e1"]),
        ("l'été", ["e3"]),
    ],
)
def test_search_finds_words_and_takes_nothing_for_an_operator(
    store: EventStore, words: str, expected: list[str]
) -> None:
    store.add(event("e1", "A man rides a bicycle."), b"")
    store.add(event("e2", "A man in a red coat."), b"")
    store.add(event("e3", "L'été, une femme."), b"")
    store.add(replace(FAILED_EVENT, event_id="e4"), b"")
    assert ids(store.search(words, 10)) == expected


def test_related_weighs_rare_words_and_then_the_newest(store: EventStore) -> None:
    for number in range(5):
        store.add(replace(event(f"man{number}", "The man at the gate."), t_wall=float(number)), b"")
    store.add(replace(event("zebra", "The zebra."), t_wall=-1.0), b"")
    assert ids(store.related("Was there a zebra with the man?", 3)) == ["zebra", "man4", "man3"]
    assert ids(store.related("wolf", 3)) == []
    assert ids(store.related('" * ?', 3)) == []


def test_search_follows_changes_of_rows(store: EventStore, tmp_path: Path) -> None:
    """By triggers, so that retention or a repair by hand cannot leave ghosts."""
    store.add(event("e1", "A wolf."), b"")
    store.add(event("e2", "A fox."), b"")
    with create_engine(f"sqlite:///{tmp_path / DATABASE}").begin() as connection:
        connection.execute(text("DELETE FROM events WHERE event_id = 'e1'"))
        connection.execute(text("UPDATE events SET caption = 'A hare.' WHERE event_id = 'e2'"))
        connection.execute(text("INSERT INTO captions(captions) VALUES ('integrity-check')"))
    assert [ids(store.search(word, 9)) for word in ("wolf", "fox", "hare")] == [[], [], ["e2"]]


def test_reopening_keeps_everything_and_migrates_once(tmp_path: Path) -> None:
    first = EventStore(tmp_path)
    first.add(event("e1"), b"x")
    first.close()
    first.close()
    second = EventStore(tmp_path)
    assert ids(second.recent(9)) == ["e1"]
    with create_engine(f"sqlite:///{tmp_path / DATABASE}").connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"


def test_threads_write_and_read_together(store: EventStore) -> None:
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(25):
                store.add(event(f"{worker}-{number}"), b"x")
                store.search("man", 5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.recent(1000)) == 100


def test_one_event_is_kept_once(store: EventStore) -> None:
    store.add(event("e1"), b"x")
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add(event("e1"), b"x")


def test_a_missing_picture_is_none_not_an_error(store: EventStore, tmp_path: Path) -> None:
    kept = store.add(event("e1"), b"x")
    (tmp_path / str(kept.jpeg_path)).unlink()
    assert store.jpeg("e1") is None


def test_an_unusable_directory_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match=r"data directory .*/file cannot be used: .*--data-dir") as caught:
        EventStore(file)
    assert "\n" not in str(caught.value)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / DATABASE).write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        EventStore(broken)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        EventStore(tmp_path)


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from pipeline.store import EventStore
from tests.unit.pipeline.test_jsonl import OK_EVENT
store = EventStore(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(100000):
    store.add(replace(OK_EVENT, event_id=f"{sys.argv[2]}-{number}"), b"whole" * 1000)
    print(f"{sys.argv[2]}-{number}", flush=True)
"""


def test_kill_dash_nine_loses_nothing_that_was_announced(tmp_path: Path) -> None:
    rolls = random.Random(5)
    announced: list[str] = []
    for round_number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(round_number)],
            cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        killer = threading.Timer(rolls.uniform(0.05, 0.3), process.send_signal, [signal.SIGKILL])
        killer.start()
        announced += [line.strip() for line in process.stdout if line.endswith("\n")]
        assert process.wait(10) == -signal.SIGKILL
    assert len(announced) > 8, "the writer wrote"
    store = EventStore(tmp_path)
    kept = store.recent(10_000)
    assert set(announced) <= set(ids(kept))
    assert all(store.jpeg(row.event_id) == b"whole" * 1000 for row in kept), "no row without its whole picture"
    assert ids(store.search("Grüß", 10_000)) == ids(kept)
    assert {row.reason for row in kept} == {Reason.NEW_TRACK}

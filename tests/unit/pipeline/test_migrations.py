"""A database of any earlier release comes up to date with its events; one of a later release is left alone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from pipeline.migrations.run import migrate
from pipeline.schema import EVENTS
from pipeline.store import DATABASE, EventStore, StoreError
from tests.unit.pipeline.test_jsonl import OK_EVENT

REPOSITORY = Path(__file__).parents[3]

ROW = (
    "INSERT INTO events (event_id, camera, frame_seq, pts_s, track_ids, boxes, reason, status, caption, t_captured, "
    "t_selected, t_wall, jpeg_path) VALUES ('old', 'door', 1, 0.5, '[1]', '[[1, 2, 3, 4, 0.5]]', 'new_track', 'ok', "
    "'A wolf.', 1.0, 2.0, 3.0, 'pictures/1970-01-01/old.jpg')"
)


def first_releases_database(path: Path, num_steps: int) -> None:
    """What the first releases left behind: their steps are counted in `user_version`, and there is no Alembic table."""
    store = EventStore(path)
    store.close()
    with sqlite3.connect(path / DATABASE) as connection:
        connection.execute("DROP TABLE alembic_version")
        connection.execute("DROP INDEX events_by_age")
        for column in ("jpeg_bytes", "zone", "count_mismatch", "details"):
            connection.execute(f"ALTER TABLE events DROP COLUMN {column}")
        if num_steps < 2:
            for name in ("inserted", "deleted", "updated"):
                connection.execute(f"DROP TRIGGER caption_{name}")
            connection.execute("DROP TABLE captions")
        connection.execute(ROW)
        connection.execute(f"PRAGMA user_version = {num_steps}")


def test_a_database_of_the_first_releases_keeps_its_events(tmp_path: Path) -> None:
    first_releases_database(tmp_path, 2)
    (tmp_path / "pictures/1970-01-01").mkdir()
    (tmp_path / "pictures/1970-01-01/old.jpg").write_bytes(b"x" * 1000)
    store = EventStore(tmp_path)
    store.add(replace(OK_EVENT, event_id="new", caption="A fox."), b"y" * 500)
    assert [event.event_id for event in store.recent(9)] == ["new", "old"]
    assert [event.event_id for event in store.search("wolf", 9)] == ["old"]
    without_pictures = EventStore(tmp_path / "empty").num_bytes()
    assert store.num_bytes() >= without_pictures + 1500, "pictures from before sizes were kept count, too"


def test_every_column_of_the_program_is_in_the_database(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / DATABASE}")
    migrate(engine)
    assert [column["name"] for column in inspect(engine).get_columns("events")] == [c.name for c in EVENTS.columns]


def test_a_database_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    EventStore(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = (tmp_path / DATABASE).read_bytes()
    with pytest.raises(StoreError, match=r"newer Watchword \(revision 9999\)") as caught:
        EventStore(tmp_path)
    assert "\n" not in str(caught.value)
    assert (tmp_path / DATABASE).read_bytes() == before


OPENER = "import sys; from pathlib import Path; from pipeline.store import EventStore; EventStore(Path(sys.argv[1]))"


def test_processes_that_open_an_empty_directory_at_once_migrate_it_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENER, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[1] for process in processes] == ["", "", ""]
    assert EventStore(tmp_path).recent(1) == []

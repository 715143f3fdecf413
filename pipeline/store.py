"""Events on disk: rows in SQLite (write-ahead log, full-text search over captions), pictures as files beside it.

A picture is whole on disk before its row is committed, so a row never points at nothing; a process killed in between
leaves at most a picture without a row. Knows nothing of how events come about.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from sqlalchemy import Engine, RowMapping, create_engine, select, text
from sqlalchemy import event as sa_event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from pipeline.events import Box, Event, EventStatus, Reason
from pipeline.schema import EVENTS, migrate

DATABASE = "events.sqlite3"
PICTURES = "pictures"
BUSY_S = 10.0


class StoreError(Exception):
    """The data directory cannot be used. One line that names it."""


class EventStore:
    """The events of one data directory. All methods may be called from any thread and raise `StoreError`."""

    def __init__(self, data_dir: Path) -> None:
        self._dir = Path(data_dir).expanduser()
        self._writing = threading.Lock()
        try:
            (self._dir / PICTURES).mkdir(parents=True, exist_ok=True)
            self._check_writable()
            self._engine = _connect(self._dir / DATABASE)
            migrate(self._engine)
        except (OSError, SQLAlchemyError) as error:
            raise self._error("cannot be used", error) from error

    def add(self, event: Event, jpeg: bytes) -> Event:
        """Keep an event and its picture; both are on disk when this returns the event with its `jpeg_path`."""
        day = time.strftime("%Y-%m-%d", time.gmtime(event.t_wall))
        event = replace(event, jpeg_path=f"{PICTURES}/{day}/{event.event_id}.jpg")
        try:
            with self._writing:
                _write_atomically(self._dir / str(event.jpeg_path), jpeg)
                with self._engine.begin() as connection:
                    connection.execute(EVENTS.insert().values(_to_row(event)))
        except (OSError, SQLAlchemyError) as error:
            raise self._error("cannot be written", error) from error
        return event

    def recent(self, limit: int, before: str | None = None, camera: str | None = None) -> list[Event]:
        """Up to `limit` events, the last ended first; only those that ended before the event `before`, if given."""
        query = select(EVENTS).order_by(EVENTS.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(EVENTS.c.id < select(EVENTS.c.id).where(EVENTS.c.event_id == before).scalar_subquery())
        if camera is not None:
            query = query.where(EVENTS.c.camera == camera)
        with self._engine.connect() as connection:
            return [_to_event(row) for row in connection.execute(query).mappings()]

    def get(self, event_id: str) -> Event | None:
        """The event, or None."""
        query = select(EVENTS).where(EVENTS.c.event_id == event_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _to_event(row)

    def search(self, words: str, limit: int) -> list[Event]:
        """Up to `limit` events whose caption has all `words`, the last first.

        A word also finds its English inflections and longer words that begin with it. Nothing in `words` is an
        operator: whatever a person types is looked for.
        """
        phrases = [f'"{word}"*' for word in words.replace('"', " ").split() if any(c.isalnum() for c in word)]
        if not phrases:
            return []
        found = text("SELECT rowid FROM captions WHERE captions MATCH :phrases").bindparams(phrases=" ".join(phrases))
        query = select(EVENTS).where(EVENTS.c.id.in_(found.columns(EVENTS.c.id).scalar_subquery()))
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(EVENTS.c.id.desc()).limit(limit)).mappings()
            return [_to_event(row) for row in rows]

    def jpeg(self, event_id: str) -> bytes | None:
        """The picture that was sent for this event; None without the event or its file."""
        event = self.get(event_id)
        if event is None or event.jpeg_path is None:
            return None
        try:
            return (self._dir / event.jpeg_path).read_bytes()
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Close the database. Callable more than once."""
        self._engine.dispose()

    def _check_writable(self) -> None:
        probe = self._dir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()

    def _error(self, what: str, error: OSError | SQLAlchemyError) -> StoreError:
        cause = error.strerror if isinstance(error, OSError) else getattr(error, "orig", None)
        detail = " ".join(str(cause or error).split())
        return StoreError(f"data directory {self._dir} {what}: {detail}; choose another with --data-dir")


def _connect(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_S})

    @sa_event.listens_for(engine, "connect")
    def _settings(connection: object, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()  # pyright: ignore[reportAttributeAccessIssue] - the driver's connection
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # events are few; each must survive the plug being pulled
        cursor.close()

    return engine


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _to_row(event: Event) -> dict[str, object]:
    row: dict[str, object] = {
        column.name: getattr(event, column.name) for column in EVENTS.columns if column.name != "id"
    }
    row["track_ids"] = json.dumps(event.track_ids)
    row["boxes"] = json.dumps([astuple(box) for box in event.boxes])
    return row


def _to_event(row: RowMapping) -> Event:
    fields = {name: value for name, value in row.items() if name != "id"}
    boxes: Sequence[Sequence[float]] = json.loads(row["boxes"])
    return Event(
        **{
            **fields,
            "track_ids": tuple(json.loads(row["track_ids"])),
            "boxes": tuple(Box(*box) for box in boxes),
            "reason": Reason(row["reason"]),
            "status": EventStatus(row["status"]),
        }
    )

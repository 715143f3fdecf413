"""Events on disk: rows in SQLite (write-ahead log, full-text search over captions), pictures as files beside it.

A picture is whole on disk before its row is committed, and a row is gone before its picture is removed, so a row never
points at nothing; a process killed in between leaves at most a picture without a row, which `sweep` finds. Knows
nothing of how events come about, and decides nothing about how long they stay.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from pathlib import Path

from sqlalchemy import Connection, RowMapping, Select, delete, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from pipeline.archive import StoreError
from pipeline.database import connect, connect_to_read
from pipeline.events import Box, Details, Event, EventStatus, Reason
from pipeline.migrations.run import NewerDatabase, migrate, require_current
from pipeline.picture_files import PictureFiles
from pipeline.query import EventQuery
from pipeline.schema import EVENTS

DATABASE = "events.sqlite3"
RELATED_DEPTH = 200
MAX_RELATED_WORDS = 16


class EventStore:
    """The events of one data directory. All methods may be called from any thread and raise `StoreError`.

    Opened to `read_only`, it writes nothing, and takes events of this very version alone.
    """

    def __init__(self, data_dir: Path, *, read_only: bool = False) -> None:
        self._dir = Path(data_dir).expanduser()
        self._writing = threading.Lock()
        with self._errors("cannot be used"):
            self._pictures = PictureFiles(self._dir)
            if read_only:
                self._engine = connect_to_read(self._dir / DATABASE)
                require_current(self._engine)
            else:
                self._check_writable()
                self._engine = connect(self._dir / DATABASE)
                migrate(self._engine)

    def add(self, event: Event, jpeg: bytes) -> Event:
        """Keep an event and its picture; both are on disk when this returns the event with its `jpeg_path`."""
        event = replace(event, jpeg_path=self._pictures.path_for(event.event_id, event.t_wall))
        with self._errors("cannot be written"), self._writing:
            self._pictures.write(str(event.jpeg_path), jpeg)
            with self._engine.begin() as connection:
                connection.execute(EVENTS.insert().values(**_to_row(event), jpeg_bytes=len(jpeg)))
        return event

    def recent(self, limit: int, before: str | None = None, camera: str | None = None) -> list[Event]:
        """Up to `limit` events, the last kept first; only those kept before the event `before`, if given."""
        return self.find(EventQuery(camera=camera), limit, before)

    def find(self, query: EventQuery, limit: int, before: str | None = None) -> list[Event]:
        """Up to `limit` events that match, the last kept first; only those kept before the event `before`, if given."""
        return self._read(query.newest_first(limit, before))

    def next_after(self, event_id: str) -> Event | None:
        """The event that was kept right after this one, or None."""
        this = select(EVENTS.c.id).where(EVENTS.c.event_id == event_id).scalar_subquery()
        return next(iter(self._read(select(EVENTS).where(EVENTS.c.id > this).order_by(EVENTS.c.id).limit(1))), None)

    def search(self, words: str, limit: int) -> list[Event]:
        """Up to `limit` events whose caption has all `words`, the last first."""
        return self.find(EventQuery(words=words), limit)

    def related(self, words: str, limit: int) -> list[Event]:
        """Up to `limit` events whose caption has any of `words`: first rare words count, then the newest.

        A word's rarity is read off the newest captions that have it, which also keeps the time short however many
        there are (SQLite's own ranking looks at every match).
        """
        found: dict[str, Event] = {}
        weights: defaultdict[str, float] = defaultdict(float)
        for word in dict.fromkeys(words.lower().split()[:MAX_RELATED_WORDS]):
            matches = self.find(EventQuery(words=word), RELATED_DEPTH)
            for event in matches:
                found[event.event_id] = event
                weights[event.event_id] += 1 / len(matches)
        best = sorted(found.values(), key=lambda event: (weights[event.event_id], event.t_wall), reverse=True)
        return best[:limit]

    def pages(self, query: EventQuery, size: int) -> Iterator[list[Event]]:
        """All events that match, `size` at a time, the first kept first."""
        last_id = 0
        while (selected := query.select()) is not None:
            with self._errors("cannot be read"), self._engine.connect() as connection:
                page = selected.where(EVENTS.c.id > last_id).order_by(EVENTS.c.id).limit(size)
                rows = connection.execute(page).mappings().all()
            if not rows:
                return
            last_id = rows[-1]["id"]
            yield [_to_event(row) for row in rows]

    def get(self, event_id: str) -> Event | None:
        """The event, or None."""
        return next(iter(self._read(select(EVENTS).where(EVENTS.c.event_id == event_id))), None)

    def jpeg(self, event_id: str) -> bytes | None:
        """The picture that was sent for this event; None without the event or its file."""
        event = self.get(event_id)
        return None if event is None or event.jpeg_path is None else self._pictures.read(event.jpeg_path)

    def num_bytes(self) -> int:
        """What pictures and database take on disk, without pages of the database that are free for new rows."""
        with self._errors("cannot be read"), self._engine.begin() as connection:
            self._measure_old_rows(connection)
            pictures = connection.execute(select(func.coalesce(func.sum(EVENTS.c.jpeg_bytes), 0))).scalar_one()
            pages, free, page = (
                connection.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int(pictures) + (pages - free) * page

    def remove_oldest(self, limit: int, before_wall: float | None = None) -> tuple[int, int]:
        """Remove up to `limit` events, the oldest first, and their pictures; with `before_wall` only older ones.

        Returns how many went, and the bytes of their pictures.
        """
        oldest = select(EVENTS.c.id, EVENTS.c.jpeg_path, EVENTS.c.jpeg_bytes).order_by(EVENTS.c.t_wall).limit(limit)
        if before_wall is not None:
            oldest = oldest.where(EVENTS.c.t_wall < before_wall)
        with self._errors("cannot be written"), self._writing:
            with self._engine.begin() as connection:
                rows = connection.execute(oldest).all()
                connection.execute(delete(EVENTS).where(EVENTS.c.id.in_([row.id for row in rows])))
            for row in rows:
                if row.jpeg_path is not None:
                    self._pictures.remove(row.jpeg_path)
        return len(rows), sum(row.jpeg_bytes or 0 for row in rows)

    def sweep(self) -> int:
        """Remove pictures older than an hour that no event has, as a killed process may leave; returns their number."""
        num_swept = 0
        with self._errors("cannot be swept"):
            for day, paths in self._pictures.days():
                known = select(EVENTS.c.jpeg_path).where(EVENTS.c.jpeg_path.startswith(f"{day}/", autoescape=True))
                with self._engine.connect() as connection:
                    kept = set(connection.execute(known).scalars())
                orphans = [path for path in paths if path not in kept]
                for path in orphans:
                    self._pictures.remove(path)
                num_swept += len(orphans)
        return num_swept

    def close(self) -> None:
        """Close the database. Callable more than once."""
        self._engine.dispose()

    def _read(self, query: Select[tuple[object, ...]] | None) -> list[Event]:
        if query is None:
            return []
        with self._errors("cannot be read"), self._engine.connect() as connection:
            return [_to_event(row) for row in connection.execute(query).mappings()]

    def _measure_old_rows(self, connection: Connection) -> None:
        """Fill in the sizes of pictures that were kept before rows had a place for them."""
        unknown = select(EVENTS.c.id, EVENTS.c.jpeg_path).where(EVENTS.c.jpeg_bytes.is_(None))
        for row in connection.execute(unknown).all():
            size = 0 if row.jpeg_path is None else self._pictures.size(row.jpeg_path)
            connection.execute(EVENTS.update().where(EVENTS.c.id == row.id).values(jpeg_bytes=size))

    def _check_writable(self) -> None:
        probe = self._dir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Everything the disk and the database may say, as one `StoreError`."""
        try:
            yield
        except NewerDatabase as error:
            raise StoreError(f"data directory {self._dir} {what}: {error}, or choose another with --data-dir") from None
        except (OSError, SQLAlchemyError) as error:
            cause = error.strerror if isinstance(error, OSError) else getattr(error, "orig", None)
            detail = " ".join(str(cause or error).split())
            raise StoreError(f"data directory {self._dir} {what}: {detail}; choose another with --data-dir") from error


def _to_row(event: Event) -> dict[str, object]:
    row: dict[str, object] = {
        column.name: getattr(event, column.name) for column in EVENTS.columns if column.name not in ("id", "jpeg_bytes")
    }
    row["track_ids"] = json.dumps(event.track_ids)
    row["boxes"] = json.dumps([astuple(box) for box in event.boxes])
    row["details"] = None if event.details is None else json.dumps(asdict(event.details))
    return row


def _to_event(row: RowMapping) -> Event:
    fields = {name: value for name, value in row.items() if name not in ("id", "jpeg_bytes")}
    boxes: Sequence[Sequence[float]] = json.loads(row["boxes"])
    return Event(
        **{
            **fields,
            "track_ids": tuple(json.loads(row["track_ids"])),
            "boxes": tuple(Box(*box) for box in boxes),
            "reason": Reason(row["reason"]),
            "status": EventStatus(row["status"]),
            "details": None if row["details"] is None else Details(**json.loads(row["details"])),
        }
    )

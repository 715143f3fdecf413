"""Stored events for other programs: `events.jsonl`, oldest first, and its pictures, in a folder or a zip file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from pipeline.events import Event
from pipeline.jsonl import to_line
from pipeline.query import EventQuery

LINES = "events.jsonl"
PAGE = 200


class ExportError(Exception):
    """The export cannot be written. One line that names it."""


class Stored(Protocol):
    """What an export reads."""

    def pages(self, query: EventQuery, size: int) -> Iterator[list[Event]]:
        """All events that match, `size` at a time, the first kept first."""
        ...

    def jpeg(self, event_id: str) -> bytes | None:
        """An event's picture, None if it is gone."""
        ...


class _Sink(Protocol):
    def lines(self) -> IO[bytes]: ...
    def put(self, name: str, data: bytes) -> None: ...


def export(store: Stored, query: EventQuery, out: Path, told: Callable[[int], None] = lambda _: None) -> int:
    """Write every event that matches to `out`, a zip file if it is called `.zip`, else a folder; neither may exist.

    `told` gets the number of events written so far, now and then. Returns how many there were. Raises `ExportError`.
    """
    num_events = 0
    try:
        with _open(out) as sink, sink.lines() as lines:
            for page in store.pages(query, PAGE):
                pictures: list[tuple[str, bytes]] = []
                for event in page:
                    jpeg = store.jpeg(event.event_id)
                    name = None if jpeg is None else f"pictures/{event.event_id}.jpg"
                    lines.write(_line(event, name))
                    if name is not None and jpeg is not None:
                        pictures.append((name, jpeg))
                for name, jpeg in pictures:
                    sink.put(name, jpeg)
                num_events += len(page)
                told(num_events)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {(error.strerror or str(error)).lower()}") from error
    return num_events


def _line(event: Event, picture: str | None) -> bytes:
    """The event's JSON line with its id first and where its picture is."""
    line = {"event_id": event.event_id, **json.loads(to_line(event)), "error": event.error, "picture": picture}
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


@contextmanager
def _open(out: Path) -> Iterator[_Sink]:
    if out.suffix.lower() == ".zip":
        with _Zip(out) as sink:
            yield sink
    else:
        yield _Folder(out)


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "pictures").mkdir(parents=True)

    def lines(self) -> IO[bytes]:
        return (self._root / LINES).open("xb")

    def put(self, name: str, data: bytes) -> None:
        (self._root / name).write_bytes(data)


class _Zip:
    """Lines go to a file beside the archive first: a zip file takes one member at a time."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "x", zipfile.ZIP_STORED)  # JPEG does not get smaller
        self._part = path.with_suffix(".jsonl.part")

    def __enter__(self) -> _Zip:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._part.exists():
                self._zip.write(self._part, LINES, zipfile.ZIP_DEFLATED)
        finally:
            self._part.unlink(missing_ok=True)
            self._zip.close()

    def lines(self) -> IO[bytes]:
        return self._part.open("wb")

    def put(self, name: str, data: bytes) -> None:
        self._zip.writestr(name, data)

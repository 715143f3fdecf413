"""Events as JSON lines: one line per event, written once, when it ended. The format is a promise to other programs."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from pipeline.events import Event

STDOUT = "-"


class JsonlError(Exception):
    """The output cannot be written. One line that names the file."""


def to_line(event: Event) -> str:
    """One line without its newline. Boxes are [x1, y1, x2, y2, conf], aligned with `track_ids`.

    Times within a stream are rounded to 1 ms, times of a clock to 0.1 ms.
    """
    return json.dumps(
        {
            "camera": event.camera,
            "frame_seq": event.frame_seq,
            "pts_s": round(event.pts_s, 3),
            "track_ids": list(event.track_ids),
            "boxes": [[b.x1, b.y1, b.x2, b.y2, b.conf] for b in event.boxes],
            "zone": event.zone,
            "reason": event.reason,
            "status": event.status,
            "caption": event.caption,
            "count_mismatch": event.count_mismatch,
            "details": None if event.details is None else asdict(event.details),
            "model": event.model,
            "t_captured": _moment(event.t_captured),
            "t_selected": _moment(event.t_selected),
            "t_sent": _moment(event.t_sent),
            "t_first_token": _moment(event.t_first_token),
            "t_last_token": _moment(event.t_last_token),
            "t_wall": _moment(event.t_wall),
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _moment(t_s: float | None) -> float | None:
    return None if t_s is None else round(t_s, 4)


def _give_up_stdout() -> None:
    """Send what standard output could not take nowhere: the interpreter tries to write it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class JsonlWriter:
    """Appends events to `path` (`-`: standard output), line by line, flushed. Thread-safe. Raises `JsonlError`."""

    def __init__(self, path: Path | str) -> None:
        self._name = str(path)
        self._lock = threading.Lock()
        try:
            self._file = self._open()
        except OSError as error:
            raise self._error(error) from error

    def write(self, event: Event) -> None:
        """Append one line; it is in the file when this returns."""
        line = to_line(event) + "\n"
        try:
            with self._lock:
                self._file.write(line)
                self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def close(self) -> None:
        """No more lines. Callable more than once. Raises `JsonlError` if lines that were written before got lost."""
        try:
            if self._file is sys.stdout:
                self._file.flush()
            else:
                self._file.close()
        except OSError as error:
            if self._file is sys.stdout:
                _give_up_stdout()
            raise self._error(error) from error

    def _open(self) -> TextIO:
        if self._name == STDOUT:
            return sys.stdout
        return Path(self._name).expanduser().open("a", encoding="utf-8")

    def _error(self, error: OSError) -> JsonlError:
        name = "standard output" if self._name == STDOUT else self._name
        return JsonlError(f"cannot write {name}: {error.strerror or error}")

"""Pictures as files under one directory, a folder a day: written whole or not at all, removed one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

PICTURES = "pictures"
PART = ".part"


class PictureFiles:
    """The files below `root`/pictures. Paths are relative to `root`, as rows hold them. Raises `OSError`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / PICTURES).mkdir(parents=True, exist_ok=True)

    def path_for(self, event_id: str, t_wall: float) -> str:
        """Where the picture of an event belongs."""
        return f"{PICTURES}/{time.strftime('%Y-%m-%d', time.gmtime(t_wall))}/{event_id}.jpg"

    def write(self, path: str, data: bytes) -> None:
        """Put the file there; it is on disk, name included, when this returns."""
        target = self._root / path
        part = target.with_suffix(PART)
        target.parent.mkdir(exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.rename(target)
            _sync_directory(target.parent)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def read(self, path: str) -> bytes | None:
        """The file's bytes; None if it is gone."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int:
        """The file's length in bytes, 0 if it is gone."""
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return 0

    def remove(self, path: str) -> None:
        """Remove the file and, if it was the last of its day, the day's folder. Nothing if it is gone."""
        target = self._root / path
        target.unlink(missing_ok=True)
        try:
            target.parent.rmdir()
        except OSError:
            return  # other pictures of that day

    def days(self) -> Iterator[tuple[str, list[str]]]:
        """Each day's folder with the paths of its files older than an hour, unfinished ones included."""
        fresh = time.time() - 3600
        for day in sorted((self._root / PICTURES).iterdir()):
            if day.is_dir():
                old = (entry for entry in os.scandir(day) if entry.is_file() and entry.stat().st_mtime < fresh)
                yield f"{PICTURES}/{day.name}", [f"{PICTURES}/{day.name}/{entry.name}" for entry in old]


def _sync_directory(path: Path) -> None:
    """A new name is on disk only once its directory is."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

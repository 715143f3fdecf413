"""One holder at a time across processes: an advisory lock on a file, released by the system however its holder ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


@contextmanager
def exclusive(path: Path, console: Console) -> Iterator[None]:
    """Hold the lock file at `path` (made if need be); says once on `console` when it has to wait. Raises OSError."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"Another watchword is preparing {path.parent}; waiting for it …", highlight=False)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

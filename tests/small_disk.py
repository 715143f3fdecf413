"""A small disk of its own, that can be full, or read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096


@dataclass(frozen=True)
class SmallDisk:
    """The disk mounted at `at`."""

    at: Path

    @property
    def ballast(self) -> Path:
        """A file that takes all the room."""
        return self.at / "ballast"

    def fill(self) -> None:
        """Write the ballast until not a byte more fits."""
        with self.ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, BLOCK, 1):
                with suppress(OSError):
                    while True:
                        os.write(file.fileno(), bytes(size))

    def clear(self) -> None:
        """Give the room back."""
        self.ballast.unlink()

    def protect(self) -> None:
        """Make it read-only; nothing on it may be open for writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.at)], check=True)


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[SmallDisk | None]:
    """A file system of that size mounted at `at`, an existing directory; None where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(at)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield SmallDisk(at) if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(at)], check=True)

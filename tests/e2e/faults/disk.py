"""A small disk of its own, that can be full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 4096


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[bool]:
    """A file system of that size mounted at `at`, an existing directory; gives False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(at)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(at)], check=True)


def fill(ballast: Path) -> None:
    """Write `ballast` until not a byte more fits on its disk."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, BLOCK, 1):
            try:
                while True:
                    os.write(file.fileno(), bytes(size))
            except OSError:
                continue

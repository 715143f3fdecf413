"""Looking at this machine's processes as an outsider would, through /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path


def capture_processes(parent_pid: int | None = None) -> list[int]:
    """The capture processes started by `parent_pid` (ours by default)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"camera_sources.capture_child" in read(int(entry.name), "cmdline"):
            ppid = int(read(int(entry.name), "stat").rpartition(b")")[2].split()[1])
            if ppid == (parent_pid or os.getpid()):
                found.append(int(entry.name))
    return found


def read(pid: int, name: str) -> bytes:
    """/proc/PID/NAME, or something harmless once the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b"0 (gone) Z 0"


def is_alive(pid: int) -> bool:
    """Whether `pid` runs (a zombie does not)."""
    return read(pid, "stat").rpartition(b")")[2].split()[0] != b"Z"


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    """Whether `pid` ends within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)

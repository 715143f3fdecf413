"""The product as a person runs it: `watchword run` in a process of its own, with all its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from tests.cameras.fixtures import free_port

START_S = 120.0


class Product:
    """`with Product([...])` starts it and waits for its one URL; leaving stops it. `lines` is all it printed."""

    def __init__(self, *arguments: str, home: Path, env: dict[str, str] | None = None, wait: bool = True) -> None:
        self.ui_port, self.port = free_port(), free_port()
        self.lines: list[str] = []
        self._wait = wait
        self._arguments = [*arguments, f"--ui-port={self.ui_port}", f"--data-dir={home / 'data'}"]
        if not any(argument.startswith("--base-url") for argument in arguments):
            self._arguments.append(f"--port={self.port}")
        self._env = {name: value for name, value in os.environ.items() if name not in ("SOURCE", "MODEL", "DETECTOR")}
        self._env |= env or {}

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Product:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ui.cli", "run", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if self._wait:
            try:
                self.until(lambda: self.has_said(self.page), START_S)
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it as Ctrl-C does, by force if it must be."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        self._reader.join(5)

    def has_said(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait for `condition`; fail with everything the product printed."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._wait and self.process.poll() is not None:
                _fail(f"it ended with status {self.process.returncode}", self.lines)
            if time.monotonic() > deadline:
                _fail(f"it did not come about within {timeout_s:g} s", self.lines)
            time.sleep(0.05)

    def family(self) -> dict[int, str]:
        """Every process below it, with its command line."""
        return {pid: command_line(pid) for pid in descendants(self.process.pid)}

    def child(self, words: str) -> int | None:
        """The process below it whose command line has `words`."""
        return next((pid for pid, line in self.family().items() if words in line), None)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def alive(pids: list[int]) -> list[int]:
    """Those of `pids` that still run (a zombie does not)."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def _fail(reason: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    if "could not download" in text and os.environ.get("CI") != "true":
        pytest.skip("the package index cannot be reached for the detector and the demo clip")
    pytest.fail(f"{reason}; it printed:\n{text}")

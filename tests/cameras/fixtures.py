"""Real cameras for tests of any part: an RTSP server as a process, and where the test clips are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"
SERVER = Path(__file__).with_name("rtsp_server.py")
_PROBE = (
    "import gi; gi.require_version('Gst', '1.0'); gi.require_version('GstRtspServer', '1.0');"
    "from gi.repository import Gst, GstRtspServer; Gst.init(None);"
    "assert all(map(Gst.ElementFactory.find, ('x264enc', 'rtph264pay', 'qtdemux', 'h264parse')))"
)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@cache
def _has_rtsp_server() -> bool:
    if shutil.which(SYSTEM_PYTHON) is None:
        return False
    return subprocess.run([SYSTEM_PYTHON, "-c", _PROBE], capture_output=True, timeout=60).returncode == 0


def require_rtsp_server() -> None:
    """Skip the test where GStreamer's RTSP server is missing; fail it with CI=true."""
    if _has_rtsp_server():
        return
    message = (
        "no RTSP server: install gir1.2-gst-rtsp-server-1.0, python3-gi and GStreamer's base, good, bad, ugly plugins"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class RtspServer:
    """A camera on the network: serves `path` (H.264 in MP4) in a loop, or a test pattern of `size` without one.

    A context manager; skips or fails the test (see `require_rtsp_server`) where there is no server to run. `url` holds
    the credentials, percent-encoded. `auth` is "basic" or "digest"; with a `certificate` (PEM, key included) it speaks
    RTSPS. With `keeps_time` the clip goes on from the first start on, whether or not anybody is connected, as what a
    camera looks at does; `scene_s` is where it has come to. With `damage` every so many-th frame loses a half.
    """

    def __init__(
        self,
        path: Path | None = None,
        user: str | None = None,
        password: str | None = None,
        port: int | None = None,
        *,
        size: str = "320x240",
        fps: int = 10,
        transport: str = "tcp",
        auth: str = "basic",
        certificate: Path | None = None,
        keeps_time: bool = False,
        damage: int = 0,
    ) -> None:
        self.port = port or free_port()
        self._certificate = certificate
        self._options = ["--transport", transport, "--auth", auth]
        self._options += ["--damage", str(damage)]
        self._options += ["--certificate", str(certificate)] if certificate else []
        self._path, self._user, self._password = path, user, password
        self._size, self._fps = size, fps
        self._keeps_time = keeps_time
        self._began: float | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def scene_s(self) -> float:
        """Seconds since the scene began, all rounds of the clip counted."""
        assert self._began is not None, "it was not started"
        return time.monotonic() - self._began

    @property
    def bare_url(self) -> str:
        """The URL without credentials."""
        return f"rtsp{'s' if self._certificate else ''}://127.0.0.1:{self.port}/cam"

    @property
    def url(self) -> str:
        """The URL that works."""
        if self._user is None:
            return self.bare_url
        credentials = f"{quote(self._user, safe='')}:{quote(self._password or '', safe='')}"
        return self.bare_url.replace("://", f"://{credentials}@")

    def __enter__(self) -> Self:
        require_rtsp_server()
        self.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def restart(self, *, size: str | None = None) -> None:
        """Start again on the same port, with pictures of another `size` if given; returns once connections succeed."""
        self.kill()
        self._size = size or self._size
        command = [SYSTEM_PYTHON, str(SERVER), "--port", str(self.port), "--size", self._size, "--fps", str(self._fps)]
        command += self._options
        if self._path is not None:
            command += ["--file", str(self._path)]
        self._began = self._began or time.monotonic()
        if self._keeps_time:
            command += ["--began", str(self._began)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._user}:{self._password}\n" if self._user is not None else "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "READY\n":
            raise RuntimeError("the RTSP server did not start")

    def kill(self) -> None:
        """The camera loses power."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def freeze(self) -> None:
        """The camera hangs: its connections stay open and nothing comes."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """The camera goes on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@dataclass(frozen=True, slots=True)
class ManifestClip:
    """One line of the test data's manifest; `num_frames` as ffprobe counts the container's packets."""

    path: Path
    codec: str
    width: int
    height: int
    num_frames: int
    rotation: int


def data_directory() -> Path | None:
    """The directory of test data, or None if WATCHWORD_TEST_DATA is unset."""
    value = os.environ.get("WATCHWORD_TEST_DATA")
    return Path(value) if value else None


def require_clip(name: str) -> Path:
    """The clip called `name`; skips the test where there is no test data."""
    data = data_directory()
    if data is None:
        pytest.skip("WATCHWORD_TEST_DATA is unset: no clips")
    return data / "videos" / name


def clips() -> list[ManifestClip]:
    """All clips of the manifest; none where there is no test data."""
    data = data_directory()
    if data is None:
        return []
    rows = map(json.loads, (data / "videos" / "manifest.jsonl").read_text().splitlines())
    return [
        ManifestClip(
            data / "videos" / row["file"],
            row["codec"],
            row["width"],
            row["height"],
            int(row["frames"]),
            row["rotation"],
        )
        for row in rows
    ]

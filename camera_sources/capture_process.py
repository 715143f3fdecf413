"""One capture process seen from its parent: started with secrets only in its stdin, listened to, and surely ended."""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from camera_sources.capture_protocol import WISH, Ended, Order, Passed, Picture, from_line
from camera_sources.shared_frames import FrameReader, create_memory

LOG_LINES = 50
GOODBYE_S = 0.8  # a little more than the child takes to leave a camera that hangs
KILL_WAIT_S = 0.5
MAX_LINE_BYTES = 65536
# The transport is always given: what OpenCV falls back to differs between its versions, and UDP smears.
STREAM_OPTIONS = "rtsp_transport;{transport}|fflags;nobuffer+discardcorrupt"
# The parent's own environment may hold the source, password included; the child gets only this much of it.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")

Received = tuple[Picture, mmap.mmap]


class CaptureProcess:
    """A running `capture_child`. Use as a context manager, from one thread; leaving it ends the process. It sends its
    first picture unasked, then one for each `wish`, and word of every other frame.

    `transport` is what RTSP packets come over, "tcp" or "udp". Raises OSError if the process cannot be started.
    """

    def __init__(self, target: str | int, open_timeout_s: float, read_timeout_s: float, transport: str) -> None:
        self._memory_fd = create_memory()
        self._reader = FrameReader(self._memory_fd)
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._partial = {"notices": b"", "log": b""}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "camera_sources.capture_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=child_environment(os.environ, transport),
                pass_fds=(self._memory_fd,),
            )
        except OSError:
            os.close(self._memory_fd)
            raise
        self._selector = selectors.DefaultSelector()
        self._stdin, self._stdout, self._stderr = _pipes(self._process)
        self._selector.register(self._stdout, selectors.EVENT_READ, "notices")
        self._selector.register(self._stderr, selectors.EVENT_READ, "log")
        order = Order(target, self._memory_fd, os.getpid(), open_timeout_s, read_timeout_s)
        with contextlib.suppress(BrokenPipeError):  # it died at once: `is_running` will tell
            self._stdin.write(order.to_line())
        os.set_blocking(self._stdin.fileno(), False)  # a child that hangs takes no wishes, and nobody waits for it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stdin.close()
        for wait_s in (GOODBYE_S, KILL_WAIT_S):
            try:
                self._process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._selector.close()
        self._stdout.close()
        self._stderr.close()
        os.close(self._memory_fd)

    def wish(self) -> None:
        """Ask for the next picture. From any thread, but not after leaving the context."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(WISH)

    def receive(self, timeout_s: float) -> Iterator[Received | Passed | Ended]:
        """What the child said since the last call, in order; waits up to `timeout_s` if it said nothing."""
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, MAX_LINE_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
            *lines, rest = (self._partial[key.data] + data).split(b"\n")
            self._partial[key.data] = rest[-MAX_LINE_BYTES:]
            if key.data == "log":
                self._log.extend(line.decode(errors="replace") for line in lines)
                continue
            for line in lines:
                notice = from_line(line)
                if isinstance(notice, Picture):
                    shape = (notice.height, notice.width, 3)
                    yield notice, self._reader.mapping(notice.offset, shape)
                elif isinstance(notice, Passed):
                    yield notice
                else:
                    self._drain_log()
                    yield notice

    def log(self) -> list[str]:
        """The last lines of the child's stderr, unredacted: for judging, not for printing."""
        return list(self._log)

    def is_running(self) -> bool:
        """False once the process is gone and all it said was received."""
        return self._process.poll() is None or any(key.data == "notices" for key in self._selector.get_map().values())

    def _drain_log(self) -> None:
        """Take in what the child printed before its last notice: the cause comes before the effect."""
        os.set_blocking(self._stderr.fileno(), False)
        while data := self._stderr.read():
            self._log.extend(data.decode(errors="replace").splitlines())


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdin, process.stdout, process.stderr


def child_environment(parent: Mapping[str, str], transport: str) -> dict[str, str]:
    """The capture process's environment: enough to run Python and OpenCV, and nothing that could hold a credential."""
    package_root = str(Path(__file__).resolve().parent.parent)
    return {
        **{name: parent[name] for name in PASSED_ON if name in parent},
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, parent.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "OPENCV_FFMPEG_CAPTURE_OPTIONS": STREAM_OPTIONS.format(transport=transport),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }

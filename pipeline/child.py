"""One child process: what it is as data, and one run of it from its start to the end of all it started.

Each child has a session of its own (a terminal's Ctrl-C reaches only the process that started it) and dies with that
process, however it ends. Decides nothing about another run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LAST_LINES_S = 1.0
"""How long an ended child's last lines may take; what it started may hold its output open."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep: what to run, with which environment (complete), and whether to start it again.

    `stdin` is written to the child's standard input, then closed: secrets travel there, never in `argv`.
    `ready_url` answers 200 once the child serves; without it a child is ready as soon as it runs.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    restart: bool = True
    ready_url: str | None = None
    stdin: bytes = field(default=b"", repr=False)
    niceness: int = 0


class ChildProcess:
    """A run of a child. `start` makes one; whoever does must await `ended`, which also feeds it its input."""

    def __init__(self, child: Child, process: asyncio.subprocess.Process, relay: asyncio.Task[None]) -> None:
        self._child = child
        self._process = process
        self._relay = relay

    @classmethod
    async def start(cls, child: Child, tell: Callable[[str], None]) -> ChildProcess:
        """Start `child`; `tell` gets each line of its output. Raises OSError if it cannot be started.

        Call it from the process's main thread: on Linux a child is told to die when the thread that started it does.
        """
        # A pipe of our own: asyncio takes a child for running while anything it started holds asyncio's.
        output, child_output = os.pipe()
        relay = asyncio.create_task(_relay(output, tell))
        try:
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                env=dict(child.env),
                stdin=asyncio.subprocess.PIPE if child.stdin else asyncio.subprocess.DEVNULL,
                stdout=child_output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_child_setup(child.niceness),
            )
        finally:
            os.close(child_output)
        return cls(child, process, relay)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End what is left of the session that it led."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> None:
        """Return when it has ended."""
        await self._process.wait()

    async def ended(self) -> int:
        """Feed it its input, wait for its end and that of all it started; its exit status (negative: a signal)."""
        try:
            if self._process.stdin is not None:
                with contextlib.suppress(ConnectionError):
                    self._process.stdin.write(self._child.stdin)
                    await self._process.stdin.drain()
                self._process.stdin.close()
            exit_code = await self._process.wait()
            self.kill()  # whatever it started and left behind; this also ends its output
            await asyncio.wait({self._relay}, timeout=LAST_LINES_S)
            return exit_code
        finally:
            self._relay.cancel()


async def _relay(output: int, tell: Callable[[str], None]) -> None:
    """Tell what comes out of the pipe `output`, line by line, until nobody holds its other end; then close it."""
    loop, stream = asyncio.get_running_loop(), asyncio.StreamReader()
    pipe = os.fdopen(output, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    try:
        rest = b""
        while data := await stream.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _tell_shown(line, tell)
        _tell_shown(rest, tell)
    finally:
        transport.close()


def _tell_shown(line: bytes, tell: Callable[[str], None]) -> None:
    shown = line.rstrip().rpartition(b"\r")[2]  # what a terminal would show of a line that rewrites itself
    if shown.strip():
        tell(shown.decode(errors="replace"))


def _child_setup(niceness: int) -> Callable[[], None]:
    """What a new child does between fork and exec: tie its life to its parent's, and step back if told to."""
    parent = os.getpid()

    def setup() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)
        if niceness:
            os.nice(niceness)
            _step_back_as_a_session(niceness)

    return setup


def _step_back_as_a_session(niceness: int) -> None:
    """Let this session weigh as little as its process: Linux first shares the cores among sessions (autogroups), and
    between two of them the niceness of a process counts for nothing."""
    with contextlib.suppress(OSError):  # a kernel without autogroups, or with /proc closed
        descriptor = os.open("/proc/self/autogroup", os.O_WRONLY)
        os.write(descriptor, str(niceness).encode())
        os.close(descriptor)

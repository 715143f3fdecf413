"""Keeps child processes running: start, relay their output, restart with backoff, and end them all together.

Owns processes and nothing else: it knows children only as data, learns that one is up from an HTTP address, and
imports no library, so that the process it lives in stays small and leaves the cores to its children. Each child has a
session of its own (a terminal's Ctrl-C reaches only the supervisor) and dies with the supervisor, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

CONFIG_ERROR = 2
"""Exit status of a child that was started with wrong settings: starting it again cannot help."""
STOP_GRACE_S = 4.0
"""How long a child may take to end by itself before it is killed."""
STABLE_AFTER_S = 60.0
"""A child that ran this long starts its backoff over."""
MAX_FIRST_STARTS = 5
"""How often a child that was never ready is started before the whole thing gives up."""
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


class ChildFailed(Exception):
    """A child ended in a way that ends everything: `exit_code` is what the supervisor's process should return."""

    def __init__(self, name: str, exit_code: int, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.exit_code = exit_code


Echo = Callable[[str, str], None]
"""Called with a child's name and one line of its output, or of news about it."""


def restart_delay_s(num_failures: int) -> float:
    """Seconds to wait before a child that failed `num_failures` times in a row (1 or more) is started again."""
    return min(0.5 * 2 ** (num_failures - 1), 30.0)


async def answers(url: str, timeout_s: float = 1.0) -> bool:
    """Whether an HTTP GET of `url` gives 200 within `timeout_s`. Never raises for a server that is not there."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                writer.write(f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
                await writer.drain()
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.split()[1:2] == [b"200"]


class Supervisor:
    """Runs its children from `async with` on until the block is left: then all have ended, with what they started.

    Must be entered from the process's main thread: on Linux a child is told to die when the thread that started it
    does. `echo` receives every line the children print, up to the failure that ends everything.
    """

    def __init__(self, children: Sequence[Child], *, echo: Echo) -> None:
        self._children = tuple(children)
        self._echo = echo
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ready = {child.name: asyncio.Event() for child in children}
        self._failed: asyncio.Future[ChildFailed] | None = None
        self._stopping = False

    async def __aenter__(self) -> Supervisor:
        self._failed = asyncio.get_running_loop().create_future()
        self._keepers = [asyncio.create_task(self._keep(child), name=child.name) for child in self._children]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def pid(self, name: str) -> int | None:
        """The process id of a child that is running now."""
        process = self._processes.get(name)
        return process.pid if process is not None and process.returncode is None else None

    async def ready(self) -> None:
        """Wait until every child was ready once. Raises `ChildFailed` when one cannot be."""
        assert self._failed is not None, "enter the supervisor first"
        all_ready = asyncio.create_task(self._all_ready())
        try:
            await asyncio.wait({all_ready, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise self._failed.result()
        finally:
            all_ready.cancel()

    async def failed(self) -> ChildFailed:
        """Wait for the failure that ends everything; never returns while the children can be kept running."""
        assert self._failed is not None, "enter the supervisor first"
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """End every child and all it started: asked first, killed after `STOP_GRACE_S`. Callable more than once."""
        self._stopping = True
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        waits = [asyncio.create_task(process.wait()) for process in running]
        if waits:
            await asyncio.wait(waits, timeout=STOP_GRACE_S)
        for process in running:
            _kill_group(process.pid)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*waits, *self._keepers, return_exceptions=True)

    async def _all_ready(self) -> None:
        for event in self._ready.values():
            await event.wait()

    async def _keep(self, child: Child) -> None:
        """One child's whole story: start, run, judge its end, wait, start again."""
        num_failures = 0
        while not self._stopping:
            t_start = time.monotonic()
            try:
                exit_code = await self._run_once(child)
            except OSError as error:
                self._fail(child, 1, f"cannot be started: {error.strerror or error}")
                return
            if self._stopping:
                return
            was_ready = self._ready[child.name].is_set()
            ended = _describe(exit_code)
            if exit_code == CONFIG_ERROR and not was_ready:
                self._fail(child, CONFIG_ERROR, ended)
                return
            if not child.restart:
                self._fail(child, exit_code if exit_code >= 0 else 1, ended)
                return
            num_failures = 1 if time.monotonic() - t_start > STABLE_AFTER_S else num_failures + 1
            if not was_ready and num_failures >= MAX_FIRST_STARTS:
                self._fail(child, 1, f"{ended}; gave up after {num_failures} starts")
                return
            delay_s = restart_delay_s(num_failures)
            self._echo(child.name, f"{ended}; starting again in {delay_s:g} s")
            await asyncio.sleep(delay_s)

    async def _run_once(self, child: Child) -> int:
        """Start the child, relay its output until it ends, and return its exit status (negative: a signal)."""
        # A pipe of our own: asyncio takes a child for running while anything it started holds asyncio's.
        output, child_output = os.pipe()
        relay = asyncio.create_task(self._relay(child.name, output))
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
        self._processes[child.name] = process
        if self._stopping:  # stop() ran while the process was being made and has not seen it
            _kill_group(process.pid)
        probe = asyncio.create_task(self._probe(child))
        try:
            if process.stdin is not None:
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(child.stdin)
                    await process.stdin.drain()
                process.stdin.close()
            exit_code = await process.wait()
            _kill_group(process.pid)  # whatever it started and left behind; this also ends its output
            await asyncio.wait({relay}, timeout=1.0)
            return exit_code
        finally:
            probe.cancel()
            relay.cancel()

    async def _probe(self, child: Child) -> None:
        if child.ready_url is not None:
            while not await answers(child.ready_url):  # noqa: ASYNC110 - the event is in another process
                await asyncio.sleep(0.1)
        self._ready[child.name].set()

    async def _relay(self, name: str, output: int) -> None:
        """Tell what comes out of the pipe `output`, line by line, until nobody holds its other end; then close it."""
        loop, stream = asyncio.get_running_loop(), asyncio.StreamReader()
        pipe = os.fdopen(output, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            rest = b""
            while data := await stream.read(65536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._tell(name, line)
            self._tell(name, rest)
        finally:
            transport.close()

    def _tell(self, name: str, line: bytes) -> None:
        if self._failed is not None and self._failed.done():
            return  # what the others say while they are ended would only bury the reason
        shown = line.rstrip().rpartition(b"\r")[2]  # what a terminal would show of a line that rewrites itself
        if shown.strip():
            self._echo(name, shown.decode(errors="replace"))

    def _fail(self, child: Child, exit_code: int, reason: str) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(ChildFailed(child.name, exit_code, reason))


def _describe(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with status {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"ended by signal {-exit_code}"


def _kill_group(pid: int) -> None:
    """Kill what is left of the session that a child led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _child_setup(niceness: int) -> Callable[[], None]:
    """What a new child does between fork and exec: tie its life to the supervisor's, and step back if told to."""
    supervisor = os.getpid()

    def setup() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:  # it died before the line above
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

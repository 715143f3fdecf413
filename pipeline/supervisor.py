"""Keeps child processes running: start, relay their output, restart with backoff, and end them all together.

It knows children only as data, learns that one is up from an HTTP address, and imports no library, so that the process
it lives in stays small and leaves the cores to its children. How a child runs is `child.py`'s.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from urllib.parse import urlsplit

from pipeline.child import Child, ChildProcess

CONFIG_ERROR = 2
"""Exit status of a child that was started with wrong settings: starting it again cannot help."""
STOP_GRACE_S = 4.0
"""How long a child may take to end by itself before it is killed."""
STABLE_AFTER_S = 60.0
"""A child that ran this long starts its backoff over."""
MAX_FIRST_STARTS = 5
"""How often a child that was never ready is started before the whole thing gives up."""


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
        self._processes: dict[str, ChildProcess] = {}
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
        return process.pid if process is not None and process.is_running else None

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
        running = [process for process in self._processes.values() if process.is_running]
        for process in running:
            process.terminate()
        waits = [asyncio.create_task(process.wait()) for process in running]
        if waits:
            await asyncio.wait(waits, timeout=STOP_GRACE_S)
        for process in running:
            process.kill()
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
        process = await ChildProcess.start(child, lambda line: self._tell(child.name, line))
        self._processes[child.name] = process
        if self._stopping:  # stop() ran while the process was being made and has not seen it
            process.kill()
        probe = asyncio.create_task(self._probe(child))
        try:
            return await process.ended()
        finally:
            probe.cancel()

    async def _probe(self, child: Child) -> None:
        if child.ready_url is not None:
            while not await answers(child.ready_url):  # noqa: ASYNC110 - the event is in another process
                await asyncio.sleep(0.1)
        self._ready[child.name].set()

    def _tell(self, name: str, line: str) -> None:
        if self._failed is not None and self._failed.done():
            return  # what the others say while they are ended would only bury the reason
        self._echo(name, line)

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

"""A long-running command's manners: what it prints, and how a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterable

import typer

from camera_sources.url import MASK, redact, split_credentials
from pipeline.supervisor import Echo


def echo_for(sources: Iterable[str], api_key: str | None, *, but: str | None = None) -> Echo:
    """Prints children's lines on stderr, each with its child's name and without the secrets of `sources`.

    Lines that contain `but` are left out.
    """
    secrets = [secret for secret in (*(split_credentials(source)[2] for source in sources), api_key) if secret]

    def echo(name: str, line: str) -> None:
        line = redact(line)
        for secret in secrets:  # on its own, outside any URL
            line = line.replace(secret, MASK)
        if but is None or but not in line:
            typer.echo(f"{name:>7}  {line}", err=True)

    return echo


async def until_signal(work: Coroutine[None, None, int]) -> int | None:
    """Run `work` to its end and return what it returns; on SIGINT, SIGTERM or SIGHUP cancel it and return None.

    Either way everything `work` cleans up is cleaned up when this returns.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    told = asyncio.Event()

    def tell() -> None:
        if not told.is_set():  # once: a second signal must not interrupt the cleaning up
            told.set()
            task.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, tell)
    with contextlib.suppress(asyncio.CancelledError):
        result = await task
        return None if told.is_set() else result
    return None

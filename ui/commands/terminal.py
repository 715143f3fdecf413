"""A long-running command's manners: what it prints, and how a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Coroutine, Iterable
from typing import Annotated

import typer

from camera_sources.url import MASK, redact, split_credentials
from pipeline.supervisor import Echo

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print settings and a line per request of the engine.")
]

CHATTER = re.compile(r"^(Settings|Serving)\b|\bINFO watchword\.server\b")
"""Children's lines that only a curious person wants: their settings, and the engine's line per request."""


def echo_for(sources: Iterable[str], api_key: str | None, *, verbose: bool) -> Echo:
    """Prints children's lines on stderr, each with its child's name and without the secrets of `sources`.

    `CHATTER` is left out unless `verbose`.
    """
    secrets = [secret for secret in (*(split_credentials(source)[2] for source in sources), api_key) if secret]

    def echo(name: str, line: str) -> None:
        line = redact(line)
        for secret in secrets:  # on its own, outside any URL
            line = line.replace(secret, MASK)
        if verbose or not CHATTER.search(line):
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

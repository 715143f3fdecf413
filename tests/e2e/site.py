"""The page alone, as a fixture: see `page_only`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def page_only(**arguments: str | int) -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    with staged_page(**arguments) as (url, _):
        yield url


@contextmanager
def staged_page(**arguments: str | int) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Its address, and what changes its scene; a scene without a name ends the server."""
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    command = [sys.executable, "-m", "tests.e2e.page_only", *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        source, sink = process.stdout, process.stdin

        def show(scene: str) -> None:
            sink.write(f"{scene}\n")
            sink.flush()
            assert source.readline().strip() == scene

        try:
            yield json.loads(source.readline())["url"], show
        finally:
            sink.close()
            process.wait(20)

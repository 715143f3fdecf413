"""The page alone, as a fixture: see `page_only`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def page_only(**arguments: str | int) -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    command = [sys.executable, "-m", "tests.e2e.page_only", *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.stdin.close()
            process.wait(20)

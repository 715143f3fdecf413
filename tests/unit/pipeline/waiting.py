"""Waiting in tests for what happens on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return once `condition` holds; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - whatever it looks at has no event to wait for
            await asyncio.sleep(0.01)

"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.e2e.browser import open_chromium

SMALL_ENGINE = (
    "--max-num-seqs=8",
    "--max-num-batched-tokens=32",
    "--kv-cache-memory-bytes=50000000",
    "--device=cpu",
    "--quantization=none",
)


@pytest.fixture(scope="session")
def small_engine(checkpoint: Callable[[str], Path]) -> tuple[str, ...]:
    """Flags for an engine that loads in seconds: a tiny random checkpoint, and little memory."""
    return (f"--model={checkpoint('fast_vlm')}", *SMALL_ENGINE)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for a file of tests, and no longer: while playwright is up, a loop runs in the main thread, where
    asynchronous tests need to start theirs."""
    with open_chromium() as browser:
        yield browser

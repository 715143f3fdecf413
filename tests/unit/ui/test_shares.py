"""Who takes how much of the machine."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ui.web.shares import Gpu, ShareMeter, parse_gpus, stage_of


def test_a_busy_detector_thread_is_seen_as_the_detector() -> None:
    meter = ShareMeter()
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, name="perception")
    thread.start()
    try:
        assert meter.read(time.monotonic()).cores == {}, "one reading is no share yet"
        time.sleep(0.5)
        shares = meter.read(time.monotonic())
    finally:
        stop.set()
        thread.join()
    assert shares.cores["detector"] > 0.02  # however busy the machine is with others
    assert shares.cores["detector"] > shares.cores["page"]
    assert sum(shares.cores.values()) <= shares.num_cores + 0.5


def test_threads_by_their_names() -> None:
    names = ["perception", "camera yard", "read-yard", "MainThread", ""]
    assert [stage_of(name) for name in names] == ["detector", "capture", "capture", "page", "page"]


def test_what_the_driver_says() -> None:
    assert parse_gpus("37, 2048, 143771\n[N/A], 1, 2\n") == (Gpu(0.37, 2048, 143771),)
    assert parse_gpus("") == ()


async def test_a_machine_whose_load_cannot_be_read_is_watched_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """jtop took a page down with it: what measures must not."""
    monkeypatch.setattr("ui.web.shares.PERIOD_S", 0.01)
    meter, num_tries = ShareMeter(), 0

    async def no_gpus() -> tuple[Gpu, ...]:
        nonlocal num_tries
        num_tries += 1
        if num_tries <= 3:
            raise OSError(24, "Too many open files")
        return ()

    monkeypatch.setattr("ui.web.shares.read_gpus", no_gpus)
    following = asyncio.create_task(meter.follow())
    async with asyncio.timeout(10):
        while num_tries < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not following.done()
    following.cancel()
    assert caplog.text.count("Too many open files") == 1
    assert meter.latest.cores

"""A bell wakes its own loop, whichever thread rings, and is given back with it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop

from backend.bell import Bell, bell_of

NEW_LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


@pytest.mark.parametrize("new_loop", NEW_LOOPS)
def test_a_loop_makes_the_calls_in_order_on_its_own_thread(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    calls: list[tuple[int, int]] = []

    async def listen() -> None:
        bell, done = bell_of(asyncio.get_running_loop()), asyncio.Event()

        def rings() -> None:
            for number in range(200):
                bell.leave(lambda number=number: calls.append((number, threading.get_ident())))
                if number % 3:
                    bell.ring()
            bell.leave(done.set)
            bell.ring()

        thread = threading.Thread(target=rings)
        thread.start()
        await asyncio.wait_for(done.wait(), 10)
        thread.join()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(listen())
    assert calls == [(number, threading.get_ident()) for number in range(200)]


async def test_a_loop_has_one_bell() -> None:
    loop = asyncio.get_running_loop()
    assert bell_of(loop) is bell_of(loop)


@pytest.mark.parametrize("new_loop", NEW_LOOPS)
def test_a_closed_loop_is_rung_for_nothing_and_leaves_no_descriptor(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    gc.collect()
    before = os.listdir("/proc/self/fd")

    def ring_after_the_end() -> None:
        async def make() -> Bell:
            return bell_of(asyncio.get_running_loop())

        with asyncio.Runner(loop_factory=new_loop) as runner:
            bell = runner.run(make())
        bell.leave(lambda: pytest.fail("nobody listens"))
        bell.ring()

    for _ in range(3):
        ring_after_the_end()
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)


async def test_whoever_rings_keeps_the_interpreter(restored_interval: None) -> None:
    """The loop's thread may not run between two rings of a thread that does nothing else."""
    bell, done = bell_of(asyncio.get_running_loop()), asyncio.Event()
    rung: list[int] = []
    heard: list[int] = []

    def ring() -> None:
        sys.setswitchinterval(60.0)  # who asks for the interpreter gets it only when it is let go
        for number in range(200):
            rung.append(number)
            bell.leave(lambda: heard.append(len(rung)))
            bell.ring()
        bell.leave(done.set)
        bell.ring()
        sys.setswitchinterval(0.005)

    await asyncio.to_thread(ring)
    await done.wait()
    assert set(heard) == {200}, "a call was made while the ringing went on"


@pytest.fixture
def restored_interval() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)

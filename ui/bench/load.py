"""How requests follow one another: closed-loop streams that ask when they were answered, and open-loop arrivals that do
not wait for anybody. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from ui.bench.endpoint import AskError
from ui.bench.recorder import Recording

MAX_FAILURES = 5
"""So many failed requests in a row, and a stream gives the server up."""
PAUSE_S = 0.5
"""Wait after a failure."""


class EndpointLost(Exception):
    """The server answers no more: one line."""


def poisson(rate: float, rng: Random) -> Iterator[float]:
    """Arrival times in seconds from now, without end: exponential gaps with mean `1 / rate`."""
    t = 0.0
    while True:
        t += rng.expovariate(rate)
        yield t


async def closed_loop(ask: Callable[[int], Awaitable[Recording]], goes_on: Callable[[], bool]) -> None:
    """Ask, wait for the whole answer, ask again, as long as `goes_on()`. `ask` gets the request's number.

    Raises `EndpointLost` after `MAX_FAILURES` failures in a row.
    """
    number, failures = 0, 0
    while goes_on():
        try:
            await ask(number)
            failures = 0
        except AskError as error:
            failures += 1
            if failures >= MAX_FAILURES:
                raise EndpointLost(f"{failures} requests in a row failed; the last one: {error}") from error
            await asyncio.sleep(PAUSE_S)
        number += 1


async def open_loop(ask: Callable[[int], Awaitable[Recording]], arrivals: Iterator[float]) -> None:
    """Begin a request at each time of `arrivals`, whatever became of the earlier ones; runs until cancelled.

    Failures are left to the recordings. Cancelling cuts off what is still being answered.
    """
    loop = asyncio.get_running_loop()
    t_begin, asking = loop.time(), set[asyncio.Task[None]]()
    try:
        for number, t in enumerate(arrivals):
            await asyncio.sleep(t_begin + t - loop.time())
            task = asyncio.create_task(_unless_refused(ask(number)))
            asking.add(task)
            task.add_done_callback(asking.discard)
    finally:
        left = tuple(asking)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _unless_refused(answer: Awaitable[Recording]) -> None:
    try:
        await answer
    except AskError:
        return

"""How the worker insists on a caption: bounded tries with growing, jittered waits, the server's own wish first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from pipeline.captioner import Captioner, CaptionError, Progress
from pipeline.config import RetryConfig
from pipeline.events import Caption, CaptionJob

JITTER = 0.2  # a fifth up or down, so that cameras do not return in step


async def at_once() -> None:
    """No wait before a request: whether the backend answers is found out by asking it."""


def wait_s(
    config: RetryConfig, num_tries: int, error: CaptionError, roll: Callable[[], float] = random.random
) -> float | None:
    """Seconds to wait after the `num_tries`-th try failed with `error`; None if that was the last. `roll` is in [0, 1).

    `Retry-After` is obeyed: never sooner, and later by jitter only. A wish beyond the deadline ends the tries.
    """
    if not error.retryable or (num_tries > len(config.delays_s) and not config.until_deadline):
        return None
    if error.retry_after_s is None:
        delays_s = config.delays_s or (1.0,)
        return delays_s[min(num_tries, len(delays_s)) - 1] * (1 + JITTER * (2 * roll() - 1))
    if error.retry_after_s >= config.deadline_s:
        return None
    return error.retry_after_s * (1 + JITTER * roll())


async def caption_with_retries(
    captioner: Captioner,
    job: CaptionJob,
    progress: Progress,
    config: RetryConfig,
    ready: Callable[[], Awaitable[None]] = at_once,
) -> Caption:
    """A caption, or the `CaptionError` of the last try. `ready` is awaited before each further try, until the deadline.

    The deadline runs from the first try to the first words, so that it cuts off waiting and never talking.
    """
    deadline = asyncio.get_running_loop().time() + config.deadline_s
    last: CaptionError | None = None
    num_tries = 0
    while True:
        num_tries += 1
        try:
            async with asyncio.timeout_at(deadline) as limit:
                if last is not None:
                    await ready()
                return await captioner.caption(job, _Lifting(progress, limit))
        except TimeoutError:
            why = f"; last: {last}" if last else ""
            raise CaptionError(f"no words within {config.deadline_s:g} s{why}", retryable=False) from last
        except CaptionError as error:
            last = error
        pause_s = wait_s(config, num_tries, last)
        if pause_s is None or asyncio.get_running_loop().time() + pause_s >= deadline:
            raise last
        await asyncio.sleep(pause_s)


class _Lifting:
    """A `Progress` that lifts the deadline once words arrive."""

    def __init__(self, progress: Progress, limit: asyncio.Timeout) -> None:
        self._progress = progress
        self._limit = limit

    def sent(self, t_sent: float) -> None:
        self._progress.sent(t_sent)

    def words(self, text: str, t_token: float) -> None:
        self._limit.reschedule(None)
        self._progress.words(text, t_token)

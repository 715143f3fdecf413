"""How long events stay: until they are too old, or until all together take too much of the disk.

One pass is a function of the store and the time; the loop around it belongs to the app.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from pipeline.archive import StoreError
from pipeline.config import RetentionConfig
from pipeline.wall_clock import WallClock

log = logging.getLogger(__name__)

BATCH = 100
"""Events removed in one transaction: short enough that one who wants to write hardly waits."""
EVERY_S = 300.0
DAY_S = 86_400.0
GB = 1_000_000_000


class Aging(Protocol):
    """What retention needs of a store."""

    def num_bytes(self) -> int:
        """What everything takes on disk."""
        ...

    def remove_oldest(self, limit: int, before_wall: float | None = None) -> tuple[int, int]:
        """Remove up to `limit` of the oldest events (all older than `before_wall`); their number and bytes."""
        ...

    def sweep(self) -> int:
        """Remove pictures that no event has."""
        ...


def expire(store: Aging, config: RetentionConfig, now_wall: float | None) -> int:
    """Remove what is older than `config` allows at `now_wall` (Unix seconds), then the oldest of what is too much.

    Where the time is not known, nothing is too old. Returns how many events went.
    """
    num_removed = 0
    if config.days is not None and now_wall is not None:
        before = now_wall - config.days * DAY_S
        while (went := store.remove_oldest(BATCH, before)[0]) > 0:
            num_removed += went
    if config.max_gb is not None:
        excess = store.num_bytes() - config.max_gb * GB
        while excess > 0:
            went, freed = store.remove_oldest(BATCH)
            if went == 0:
                break  # the rest is the database itself
            num_removed += went
            excess = store.num_bytes() - config.max_gb * GB if excess <= freed else excess - freed
    return num_removed


async def keep_tidy(store: Aging, config: RetentionConfig, clock: WallClock, every_s: float = EVERY_S) -> None:
    """Sweep once, then expire every `every_s` seconds until cancelled. A store that refuses is tried again."""
    refused: str | None = None
    sweep_first = True
    while True:
        try:
            if sweep_first:
                await asyncio.to_thread(store.sweep)
                sweep_first = False
            num_removed = await asyncio.to_thread(expire, store, config, clock.try_now())
            if num_removed:
                log.info("removed %d old events", num_removed)
            refused = None
        except StoreError as error:
            if refused != str(error):  # said once, not every few minutes
                log.warning("old events stay: %s", error)
            refused = str(error)
        await asyncio.sleep(every_s)

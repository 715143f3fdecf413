"""Events that the store could not take yet, in the order in which they ended. Bounded: the oldest go first.

Not thread-safe: its owner uses it from one thread at a time.
"""

from __future__ import annotations

from collections import deque

from pipeline.events import Event

MAX_BYTES = 64 * 1024 * 1024
"""Some hundred pictures: hours of a quiet street, minutes of a busy one."""


class Backlog:
    """A queue of events with their pictures, at most `max_bytes` of the latter. `num_lost` only grows."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._items: deque[tuple[Event, bytes]] = deque()
        self._num_bytes = 0
        self.num_lost = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, event: Event, jpeg: bytes) -> None:
        """Queue an event, at the cost of the oldest ones where there is no room; the newest always stays."""
        self._items.append((event, jpeg))
        self._num_bytes += len(jpeg)
        while self._num_bytes > self._max_bytes and len(self._items) > 1:
            self.take()
            self.num_lost += 1

    def oldest(self) -> tuple[Event, bytes]:
        """What has to be kept next; it stays queued. Raises IndexError if nothing waits."""
        return self._items[0]

    def take(self) -> None:
        """The oldest one is settled."""
        _, jpeg = self._items.popleft()
        self._num_bytes -= len(jpeg)

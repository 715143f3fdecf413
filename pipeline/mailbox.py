"""A bounded box between two threads in which the newest wins: a full box drops its OLDEST item and counts it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items wait here in order, at most `capacity` of them. All methods may be called from any thread.

    `arrived`, shared by the boxes of one reader, is notified on every put, so that one thread can wait for many boxes.
    """

    def __init__(self, capacity: int, arrived: threading.Condition | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a mailbox holds at least one item, not {capacity}")
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._arrived = arrived or threading.Condition()
        self._num_dropped = 0

    @property
    def num_dropped(self) -> int:
        """How many items were pushed out unread."""
        return self._num_dropped

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> T | None:
        """Add `item` and return the oldest one if it had to go for it. Never waits for the reader."""
        with self._arrived:
            dropped = None
            if len(self._items) == self._capacity:
                dropped = self._items.popleft()
                self._num_dropped += 1
            self._items.append(item)
            self._arrived.notify_all()
            return dropped

    def try_take(self) -> T | None:
        """The oldest item, or None at once."""
        with self._arrived:
            return self._items.popleft() if self._items else None

    def take(self, timeout_s: float) -> T | None:
        """The oldest item, waiting up to `timeout_s` for one; None if none came."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._items, timeout_s)
            return self._items.popleft() if self._items else None

"""The pipeline's live news: what the page and the terminal listen to. Keeps nothing; the store remembers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from camera_sources.base import SourceStatus
from pipeline.config import Zone
from pipeline.events import Event, Selection, Track


@dataclass(frozen=True, slots=True)
class FrameSeen:
    """A camera's newest picture as JPEG (at most 5 a second per camera), with the tracks in it."""

    camera_id: str
    frame_seq: int
    width: int
    height: int
    jpeg: bytes = field(repr=False)
    tracks: tuple[Track, ...]
    t_captured: float


@dataclass(frozen=True, slots=True)
class CameraChanged:
    """A camera's status and zones, on every change of state and about once a second. Files are not `is_live`."""

    camera_id: str
    status: SourceStatus
    detector_fps: float
    is_live: bool = True
    zones: tuple[Zone, ...] = ()


@dataclass(frozen=True, slots=True)
class CameraRemoved:
    """A camera is not watched any more; all its events have ended."""

    camera_id: str


@dataclass(frozen=True, slots=True)
class CaptionQueued:
    """A selection entered the queue; its picture is `jpeg`."""

    selection: Selection
    jpeg: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CaptionDelta:
    """More words of a caption that is streaming in."""

    event_id: str
    text: str
    t_token: float


@dataclass(frozen=True, slots=True)
class EventEnded:
    """An event ended (whatever its status); `event` is final and stored, unless the store is in trouble."""

    event: Event


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """The store stopped taking events, takes them again (`reason` is empty then), or more of them wait meanwhile.

    `num_waiting` events are still in memory and will be kept; `num_lost` there was no room for.
    """

    reason: str
    num_waiting: int
    num_lost: int


FeedItem = FrameSeen | CameraChanged | CameraRemoved | CaptionQueued | CaptionDelta | EventEnded | StoreChanged


class Feed:
    """Passes news to whoever listens at the moment. A slow listener loses its own oldest news and nobody else's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []

    @property
    def has_subscribers(self) -> bool:
        """Whether anybody listens; if not, pictures need not be encoded."""
        return bool(self._subscriptions)

    def publish(self, item: FeedItem) -> None:
        """Hand `item` to every subscription. Never waits; callable from any thread."""
        with self._lock:
            subscriptions = tuple(self._subscriptions)
        for subscription in subscriptions:
            subscription._put(item)

    def subscribe(self, maxsize: int = 256) -> Subscription:
        """Everything published from now on, at most `maxsize` items waiting. Close it (or use `with`) when done."""
        subscription = Subscription(self, maxsize)
        with self._lock:
            self._subscriptions.append(subscription)
        return subscription

    def _remove(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)


class Subscription:
    """One listener's news, in order: an async iterator for one task, which ends when closed.

    Only a camera's newest picture waits: a newer `FrameSeen` replaces the waiting one. When full, the oldest item goes
    and is counted.
    """

    def __init__(self, feed: Feed, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"a subscription holds at least one item, not {maxsize}")
        self._feed = feed
        self._maxsize = maxsize
        self._lock = threading.Lock()
        self._items: deque[FeedItem] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._closed = False
        self._num_dropped = 0

    @property
    def num_dropped(self) -> int:
        """News lost to this listener because it was slow; replaced pictures are not counted."""
        return self._num_dropped

    def close(self) -> None:
        """Stop listening: what waits is still delivered, then the iteration ends. Callable more than once."""
        self._feed._remove(self)
        with self._lock:
            self._closed = True
            self._wake()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> FeedItem:
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                if self._closed:
                    raise StopAsyncIteration
                arrived = asyncio.Event()
                self._waiter = (asyncio.get_running_loop(), arrived)
            await arrived.wait()

    def _put(self, item: FeedItem) -> None:
        with self._lock:
            if self._closed:
                return
            if isinstance(item, FrameSeen):
                self._drop_older_picture(item.camera_id)
            if len(self._items) == self._maxsize:
                self._items.popleft()
                self._num_dropped += 1
            self._items.append(item)
            self._wake()

    def _drop_older_picture(self, camera_id: str) -> None:
        for index, waiting in enumerate(self._items):
            if isinstance(waiting, FrameSeen) and waiting.camera_id == camera_id:
                del self._items[index]
                return

    def _wake(self) -> None:
        """Let the waiting task look again. Holds the lock."""
        if self._waiter is not None:
            loop, arrived = self._waiter
            self._waiter = None
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.set)

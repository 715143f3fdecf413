"""What the page shows now: each camera's newest pictures and the latest events, kept up to date from the feed.

One board for all browsers, bounded in every direction; a page reads it at its own pace, so that a slow one costs
nobody anything. Knows nothing of HTML, HTTP or the engine.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from camera_sources.base import SourceState, SourceStatus
from pipeline.config import Zone
from pipeline.events import Event, EventStatus
from pipeline.feed import (
    CameraChanged,
    CameraRemoved,
    CaptionDelta,
    CaptionQueued,
    EventEnded,
    FeedItem,
    FrameSeen,
    StoreChanged,
)
from ui.web.latencies import Latencies

MAX_CARDS = 40
MAX_FRAMES = 8


class CardState(StrEnum):
    """Where an event is: waiting, being written, or ended in one of the four ways an event ends."""

    QUEUED = "queued"
    STREAMING = "streaming"
    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will come."""
        return self not in (CardState.QUEUED, CardState.STREAMING)


@dataclass(slots=True)
class Card:
    """One event as shown. `version` grows with every change; latencies are seconds, None until they are known.

    `waited_s` is how long the picture had to wait until the engine took it. `is_past` events are from an earlier run.
    `contradicts` says how the caption's words and the detector's count disagree, empty where they do not.
    """

    event_id: str
    camera: str
    reason: str
    state: CardState
    t_wall: float
    t_captured: float
    text: str = ""
    error: str = ""
    model: str = ""
    caption_s: float | None = None
    first_token_s: float | None = None
    waited_s: float | None = None
    is_past: bool = False
    contradicts: str = ""
    zone: str = ""
    is_notable: bool = False
    jpeg: bytes | None = field(default=None, repr=False)
    version: int = 0

    @classmethod
    def of(cls, event: Event, *, is_past: bool = False) -> Card:
        """What an event that ended looks like."""
        return cls(
            event_id=event.event_id,
            camera=event.camera,
            reason=event.reason,
            state=CardState(event.status),
            t_wall=event.t_wall,
            t_captured=event.t_captured,
            text=(event.caption or "") if event.status is EventStatus.OK else "",
            error=event.error or "",
            model=event.model or "",
            caption_s=_since(event.t_captured, event.t_last_token),
            first_token_s=_since(event.t_captured, event.t_first_token),
            waited_s=_since(event.t_captured, event.t_sent),
            is_past=is_past,
            contradicts=_doubt(event),
            zone=event.zone or "",
            is_notable=event.details is not None and event.details.notable,
        )


@dataclass(slots=True)
class CameraView:
    """One camera as shown: its status and since when (monotonic), its zones, and its newest pictures, newest last.

    `is_live` tells a camera from a file that is played.
    """

    camera_id: str
    status: SourceStatus = field(default_factory=lambda: SourceStatus(SourceState.CONNECTING))
    detector_fps: float = 0.0
    is_live: bool = True
    zones: tuple[Zone, ...] = ()
    t_state: float = field(default_factory=time.monotonic)
    frames: deque[FrameSeen] = field(default_factory=lambda: deque(maxlen=MAX_FRAMES))

    def frame(self, seq: int | None) -> FrameSeen | None:
        """The picture with that number while it is kept, else the newest, or None before the first."""
        if not self.frames:
            return None
        return next((seen for seen in self.frames if seen.frame_seq == seq), self.frames[-1])

    def age_s(self) -> float | None:
        """How old the newest picture of a camera that is live is; None for any other."""
        if not self.frames or self.status.state is not SourceState.LIVE:
            return None
        return time.monotonic() - self.frames[-1].t_captured


class Board:
    """The state behind the page. Single-threaded: everything happens on the app's event loop."""

    def __init__(self, camera_ids: Iterable[str]) -> None:
        self.cameras = {camera_id: CameraView(camera_id) for camera_id in camera_ids}
        self._cards: OrderedDict[str, Card] = OrderedDict()
        self.latencies = Latencies()
        self.store_trouble = ""
        """Why events are not being kept, in one line; empty while they are."""
        self.revision = 0
        """Grows with every piece of news, so that who follows the board can tell that nothing happened."""

    def restore(self, events: Iterable[Event]) -> None:
        """Show stored events, given newest first, as the page's past."""
        for event in reversed(list(events)):
            self._end(event, is_past=True)

    def cards(self) -> list[Card]:
        """The latest events, newest first."""
        return list(reversed(self._cards.values()))

    def card(self, event_id: str) -> Card | None:
        """One of the latest events."""
        return self._cards.get(event_id)

    async def follow(self, feed: AsyncIterable[FeedItem]) -> None:
        """Take in the feed until it ends."""
        async for item in feed:
            self.take(item)

    def take(self, item: FeedItem) -> None:
        """Take in one piece of news."""
        self.revision += 1
        match item:
            case FrameSeen():
                self._camera(item.camera_id).frames.append(item)
            case CameraChanged():
                self._change(self._camera(item.camera_id), item)
            case CameraRemoved():
                self.cameras.pop(item.camera_id, None)
            case StoreChanged():
                self.store_trouble = _trouble(item)
            case CaptionQueued():
                self._queue(item)
            case CaptionDelta():
                self._append(item)
            case EventEnded():
                self._end(item.event)

    def _camera(self, camera_id: str) -> CameraView:
        return self.cameras.setdefault(camera_id, CameraView(camera_id))

    def _change(self, view: CameraView, news: CameraChanged) -> None:
        if news.status.state is not view.status.state:
            view.t_state = time.monotonic()
        view.status, view.detector_fps, view.is_live = news.status, news.detector_fps, news.is_live
        view.zones = news.zones

    def _queue(self, item: CaptionQueued) -> None:
        selection = item.selection
        self._put(
            Card(
                event_id=selection.event_id,
                camera=selection.frame.camera_id,
                reason=selection.reason,
                state=CardState.QUEUED,
                t_wall=selection.frame.t_wall,
                t_captured=selection.frame.t_mono,
                jpeg=item.jpeg,
            )
        )

    def _append(self, delta: CaptionDelta) -> None:
        card = self._cards.get(delta.event_id)
        if card is None or card.state.is_final:
            return
        if card.first_token_s is None:
            card.first_token_s = delta.t_token - card.t_captured
        self.latencies.word(delta.event_id, delta.t_token)
        card.state = CardState.STREAMING
        card.text += delta.text
        card.version += 1

    def _end(self, event: Event, *, is_past: bool = False) -> None:
        before = self._cards.get(event.event_id)
        card = Card.of(event, is_past=is_past)
        if before is not None:
            card.jpeg, card.version = before.jpeg, before.version + 1
        if not is_past:
            self.latencies.take(event)
        self._put(card)

    def _put(self, card: Card) -> None:
        self._cards[card.event_id] = card
        while len(self._cards) > MAX_CARDS:
            self._cards.popitem(last=False)


def _doubt(event: Event) -> str:
    if not event.count_mismatch:
        return ""
    count = len(event.boxes)
    return f"The detector saw {'nobody' if count == 0 else 'one person' if count == 1 else f'{count} people'}"


def _trouble(news: StoreChanged) -> str:
    if not news.reason:
        return ""
    lost = f", {news.num_lost} lost" if news.num_lost else ""
    return f"Events are not being kept: {news.reason} ({news.num_waiting} wait in memory{lost})"


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)

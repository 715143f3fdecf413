"""Events from selection to end: every one ends exactly once, is kept (store, JSONL) and only then announced.

Owns which events are open and the times they reached. Decides nothing: others say when and how an event ends.
Everything here runs on the event loop; keeping happens on a thread, in the order in which events ended. What the store
refuses, on a full disk say, waits in memory and is offered again until it is taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.archive import Archive, StoreError
from pipeline.backlog import Backlog
from pipeline.counting import contradicts
from pipeline.events import Caption, CaptionJob, Event, EventStatus, Selection
from pipeline.feed import CaptionQueued, EventEnded, Feed, StoreChanged
from pipeline.jsonl import JsonlWriter

log = logging.getLogger(__name__)

RETRY_S = 5.0  # between two offers to a store that refuses


@dataclass(slots=True)
class _Open:
    job: CaptionJob
    t_sent: float | None = None
    t_first_token: float | None = None
    t_last_token: float | None = None


class _Offer:
    """It is time to ask the store again."""


class Ledger:
    """The open events of all cameras. `on_kept(event)` is called once per event, after it was announced."""

    def __init__(
        self, *, store: Archive | None, jsonl: JsonlWriter | None, feed: Feed, on_kept: Callable[[Event], None]
    ) -> None:
        self._store = store
        self._jsonl = jsonl
        self._feed = feed
        self._on_kept = on_kept
        self._open: dict[str, _Open] = {}
        self._ended: asyncio.Queue[tuple[Event, bytes] | None] = asyncio.Queue()
        self._keeper: asyncio.Task[None] | None = None
        self._backlog = Backlog()
        self._trouble = ""  # why the store refuses; empty while it does not
        self._told = StoreChanged("", 0, 0)
        self.num_by_status: Counter[EventStatus] = Counter()

    def start(self) -> None:
        """Begin keeping what ends."""
        self._keeper = asyncio.create_task(self._keep(), name="ledger")

    async def close(self) -> None:
        """Cancel what is still open and return when everything is kept and announced."""
        for event_id in tuple(self._open):
            self.try_end(event_id, EventStatus.CANCELLED)
        self._ended.put_nowait(None)
        if self._keeper is not None:
            await self._keeper

    def open(self, job: CaptionJob) -> None:
        """The selection entered the queue."""
        self._open[job.selection.event_id] = _Open(job)
        self._feed.publish(CaptionQueued(job.selection, job.jpeg))

    def note_sent(self, event_id: str, t_sent: float) -> None:
        """A try reached the backend; the times of an earlier try no longer count."""
        if entry := self._open.get(event_id):
            entry.t_sent, entry.t_first_token, entry.t_last_token = t_sent, None, None

    def note_words(self, event_id: str, t_token: float) -> None:
        """Words arrived."""
        if entry := self._open.get(event_id):
            entry.t_first_token = entry.t_first_token or t_token
            entry.t_last_token = t_token

    def try_end(
        self, event_id: str, status: EventStatus, *, caption: Caption | None = None, error: str | None = None
    ) -> bool:
        """End an event; False if it had ended before, which changes nothing."""
        entry = self._open.pop(event_id, None)
        if entry is None:
            return False
        self.num_by_status[status] += 1
        self._ended.put_nowait((_event(entry, status, caption, error), entry.job.jpeg))
        return True

    async def _keep(self) -> None:
        while (item := await self._next()) is not None:
            if isinstance(item, _Offer):
                await asyncio.to_thread(self._offer)
            else:
                event, jpeg = item
                event = await asyncio.to_thread(self._save, event, jpeg)
                self._feed.publish(EventEnded(event))
                self._on_kept(event)
            self._tell_of_store()
        await asyncio.to_thread(self._offer)
        if len(self._backlog):
            log.error("%d events are not stored: %s", len(self._backlog), self._trouble)

    async def _next(self) -> tuple[Event, bytes] | _Offer | None:
        """What ended next, None at the end; an `_Offer` when events have waited for the store long enough."""
        try:
            return await asyncio.wait_for(self._ended.get(), RETRY_S if len(self._backlog) else None)
        except TimeoutError:
            return _Offer()

    def _save(self, event: Event, jpeg: bytes) -> Event:
        """Store and line. What cannot be kept costs the record for now, never the running system."""
        if self._store is not None:
            self._backlog.put(event, jpeg)
            event = self._offer().get(event.event_id, event)
        if self._jsonl is not None:
            try:
                self._jsonl.write(event)
            except Exception as error:
                log.error("event %s is not written: %s", event.event_id, error)
        return event

    def _offer(self) -> dict[str, Event]:
        """Hand the store what waits for it, oldest first, until it refuses; returns what it kept, by id."""
        kept: dict[str, Event] = {}
        while self._store is not None and len(self._backlog):
            event, jpeg = self._backlog.oldest()
            try:
                kept[event.event_id] = self._store.add(event, jpeg)
            except StoreError as error:
                self._trouble = str(error)
                return kept
            except Exception as error:  # an event that no store could keep must not hold up those behind it
                log.error("event %s is not stored: %s", event.event_id, error)
            self._backlog.take()
        self._trouble = ""
        return kept

    def _tell_of_store(self) -> None:
        """Announce that the store began to refuse, takes events again, or that more wait for it."""
        news = StoreChanged(self._trouble, len(self._backlog), self._backlog.num_lost)
        if news != self._told:
            self._told = news
            self._feed.publish(news)


def _event(entry: _Open, status: EventStatus, caption: Caption | None, error: str | None) -> Event:
    selection = entry.job.selection
    event = Event(
        event_id=selection.event_id,
        camera=selection.frame.camera_id,
        frame_seq=selection.frame.seq,
        pts_s=selection.frame.pts_s,
        track_ids=tuple(track.track_id for track in selection.tracks),
        boxes=tuple(track.box for track in selection.tracks),
        reason=selection.reason,
        status=status,
        caption=None,
        model=None,
        t_captured=selection.frame.t_mono,
        t_selected=selection.t_selected,
        t_sent=entry.t_sent,
        t_first_token=entry.t_first_token,
        t_last_token=entry.t_last_token,
        t_wall=selection.frame.t_wall,
        error=error,
        zone=selection.zone,
    )
    if caption is None:
        return event
    return replace(
        event,
        caption=caption.text,
        model=caption.model,
        t_sent=caption.t_sent,
        t_first_token=caption.t_first_token,
        t_last_token=caption.t_last_token,
        count_mismatch=_disagrees(caption, selection),
        details=caption.details,
    )


def _disagrees(caption: Caption, selection: Selection) -> bool:
    """Whether words and detector give different numbers of people. A number of its own settles what a caption says."""
    num_counted = len(selection.tracks)
    if caption.details is not None:
        return not num_counted <= caption.details.num_people <= max(num_counted, selection.num_detected)
    return contradicts(caption.text, num_counted, selection.num_detected)

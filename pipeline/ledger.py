"""Events from selection to end: every one ends exactly once, is kept (store, JSONL) and only then announced.

Owns which events are open and the times they reached. Decides nothing: others say when and how an event ends.
Everything here runs on the event loop; keeping happens on a thread, in the order in which events ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.events import Caption, CaptionJob, Event, EventStatus
from pipeline.feed import CaptionQueued, EventEnded, Feed
from pipeline.jsonl import JsonlWriter

log = logging.getLogger(__name__)


class Archive(Protocol):
    """Where ended events are kept."""

    def add(self, event: Event, jpeg: bytes) -> Event:
        """Keep `event` and its picture; returns it with `jpeg_path` set. Raises if it cannot."""
        ...


@dataclass(slots=True)
class _Open:
    job: CaptionJob
    t_sent: float | None = None
    t_first_token: float | None = None
    t_last_token: float | None = None


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
        while (item := await self._ended.get()) is not None:
            event, jpeg = item
            event = await asyncio.to_thread(self._save, event, jpeg)
            self._feed.publish(EventEnded(event))
            self._on_kept(event)

    def _save(self, event: Event, jpeg: bytes) -> Event:
        """Store and line. What cannot be kept is said each time; it costs the record, never the running system."""
        if self._store is not None:
            try:
                event = self._store.add(event, jpeg)
            except Exception as error:
                log.error("event %s is not stored: %s", event.event_id, error)
        if self._jsonl is not None:
            try:
                self._jsonl.write(event)
            except Exception as error:
                log.error("event %s is not written: %s", event.event_id, error)
        return event


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
    )

"""One camera's way to the backend: its queue and the one request in flight. Runs on the event loop.

Knows how a job becomes an event's end (retries included), and nothing of frames, tracks or the gate's rules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from pipeline.captioner import Captioner, CaptionError, one_line
from pipeline.config import RetryConfig
from pipeline.events import CaptionJob, EventStatus
from pipeline.feed import CaptionDelta, Feed
from pipeline.ledger import Ledger
from pipeline.queue import CaptionQueue
from pipeline.retry import at_once, caption_with_retries

log = logging.getLogger(__name__)


class CaptionLane:
    """Queue and request of one camera. `on_sent(event_id, t_sent)` is told of every try that reached the backend.

    `ready` is awaited before a job leaves the queue: what waits for a backend that is being started can still be
    superseded, and does not fail for it. It is awaited again before a job is tried again.
    """

    def __init__(
        self,
        captioner: Captioner,
        ledger: Ledger,
        feed: Feed,
        retry: RetryConfig,
        on_sent: Callable[[str, float], None],
        ready: Callable[[], Awaitable[None]] = at_once,
    ) -> None:
        self._captioner = captioner
        self._ledger = ledger
        self._feed = feed
        self._retry = retry
        self._on_sent = on_sent
        self._ready = ready
        self._queue = CaptionQueue()
        self._arrived = asyncio.Event()
        self._in_flight: str | None = None

    @property
    def num_queued(self) -> int:
        """Selections waiting."""
        return len(self._queue)

    @property
    def in_flight(self) -> str | None:
        """The event whose caption is being made (or retried)."""
        return self._in_flight

    def submit(self, job: CaptionJob) -> None:
        """Queue a job, which may push out older ones."""
        for superseded in self._queue.add(job):
            self._ledger.try_end(superseded.selection.event_id, EventStatus.SUPERSEDED)
        self._ledger.open(job)
        self._arrived.set()

    def end_tracks(self, track_ids: Iterable[int]) -> None:
        """These tracks ended: follow-ups that wait for them alone are cancelled."""
        for job in self._queue.end_tracks(track_ids):
            self._ledger.try_end(job.selection.event_id, EventStatus.CANCELLED)

    async def run(self) -> None:
        """Caption what is queued, one at a time, until cancelled; what was in flight or queued then is cancelled."""
        try:
            while True:
                await self._arrived.wait()
                await self._ready()
                job = self._queue.try_take()
                if job is None:
                    self._arrived.clear()
                else:
                    await self._caption(job)
        finally:
            for job in self._queue.drain():
                self._ledger.try_end(job.selection.event_id, EventStatus.CANCELLED)

    async def _caption(self, job: CaptionJob) -> None:
        event_id = self._in_flight = job.selection.event_id
        try:
            caption = await caption_with_retries(
                self._captioner,
                job,
                _Telling(event_id, self._ledger, self._feed, self._on_sent),
                self._retry,
                self._ready,
            )
        except CaptionError as error:
            self._ledger.try_end(event_id, EventStatus.FAILED, error=str(error))
        except asyncio.CancelledError:
            self._ledger.try_end(event_id, EventStatus.CANCELLED)
            raise
        except Exception as error:
            log.exception("captioning event %s broke", event_id)
            self._ledger.try_end(event_id, EventStatus.FAILED, error=one_line(f"internal error: {error!r}"))
        else:
            self._ledger.try_end(event_id, EventStatus.OK, caption=caption)
        finally:
            self._in_flight = None


class _Telling:
    """A `Progress` that tells ledger, gate and feed. After a retry only words beyond those already told are news."""

    def __init__(self, event_id: str, ledger: Ledger, feed: Feed, on_sent: Callable[[str, float], None]) -> None:
        self._event_id = event_id
        self._ledger = ledger
        self._feed = feed
        self._on_sent = on_sent
        self._told_len = 0
        self._try_len = 0

    def sent(self, t_sent: float) -> None:
        self._try_len = 0
        self._ledger.note_sent(self._event_id, t_sent)
        self._on_sent(self._event_id, t_sent)

    def words(self, text: str, t_token: float) -> None:
        self._ledger.note_words(self._event_id, t_token)
        known = max(0, min(len(text), self._told_len - self._try_len))
        self._try_len += len(text)
        if news := text[known:]:
            self._told_len = self._try_len
            self._feed.publish(CaptionDelta(self._event_id, news, t_token))

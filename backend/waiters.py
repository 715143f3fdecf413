"""Waiters: who waits for which request, and since when.

The map from request ids to streams, with the times that the latency metrics are made of. Whoever takes a request off
the map owes its end, so every waiter is answered exactly once, whichever thread gets there first. Knows nothing of
scheduling or of why a request ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from backend.bell import bell_of
from backend.errors import EngineError
from backend.metrics import EngineMetrics, RequestTimes
from backend.stream import Courier, TokenStream
from backend.types.request import Request
from backend.types.result import FinishReason, TokenEvent
from backend.types.step import Step


@dataclass(frozen=True, slots=True)
class _Waiter:
    stream: TokenStream
    times: RequestTimes


class Waiters:
    """Requests that have not ended, with their streams. Thread-safe."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiter] = {}
        self._delivered = Courier()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> TokenStream:
        """Begin to wait for `request` on the calling event loop; raises ValueError when its id is in use."""
        stream = TokenStream(request.request_id, bell_of(asyncio.get_running_loop()))
        times = RequestTimes(request.request_class, len(request.prompt.token_ids), time.monotonic())
        with self._lock:
            if request.request_id in self._waiting:
                raise ValueError(f"request id {request.request_id} is in use")
            self._waiting[request.request_id] = _Waiter(stream, times)
        return stream

    def accept(self, request_id: str) -> None:
        """The scheduler has taken the request."""
        waiter = self._waiting.get(request_id)
        if waiter is not None:
            waiter.stream.accept()
            _wake(waiter.stream)

    def fail(self, request_id: str, error: EngineError) -> None:
        """End one request with `error`."""
        waiter = self._take(request_id)
        if waiter is not None:
            self._end_on_error(waiter, error)
            _wake(waiter.stream)

    def cancel(self, request_id: str) -> None:
        """End one request as cancelled."""
        self.deliver((TokenEvent(request_id, None, FinishReason.CANCELLED),), time.monotonic())
        self.wake()

    def note_scheduled(self, step: Step, now: float) -> None:
        """Stamp the requests that are in a step for the first time."""
        for chunk in step.chunks:
            waiter = self._waiting.get(chunk.request_id)
            if waiter is not None and waiter.times.t_scheduled is None:
                waiter.times.t_scheduled = now

    def deliver(self, events: Iterable[TokenEvent], now: float) -> None:
        """Hand out one step's events; events of requests that nobody waits for any more are dropped.

        Readers look when `wake` is called. Both belong to the engine thread.
        """
        for event in events:
            ends = event.finish_reason is not None
            waiter = self._take(event.request_id) if ends else self._waiting.get(event.request_id)
            if waiter is None:
                continue
            if event.token_id is not None:
                self._metrics.observe_token(waiter.times, now)
            if event.finish_reason is not None:
                self._metrics.observe_end(waiter.times, event.finish_reason, now)
            waiter.stream.put(event)
            self._delivered.touch(waiter.stream)

    def wake(self) -> None:
        """Let readers see what was delivered."""
        self._delivered.send()

    def fail_all(self, error: EngineError) -> None:
        """End every request with `error`."""
        with self._lock:
            orphans, self._waiting = list(self._waiting.values()), {}
        courier = Courier()
        for waiter in orphans:
            self._end_on_error(waiter, error)
            courier.touch(waiter.stream)
        courier.send()

    def _end_on_error(self, waiter: _Waiter, error: EngineError) -> None:
        waiter.stream.fail(error)
        self._metrics.observe_end(waiter.times, FinishReason.ERROR, time.monotonic())

    def _take(self, request_id: str) -> _Waiter | None:
        with self._lock:
            return self._waiting.pop(request_id, None)


def _wake(stream: TokenStream) -> None:
    courier = Courier()
    courier.touch(stream)
    courier.send()

"""A source that cannot start now (a webcam unplugged, a disk not mounted): down, with its reason, and tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from camera_sources.base import Source, SourceError, SourceState, SourceStatus
from camera_sources.frame import Frame

TRY_AGAIN_S = 10.0


class PatientSource:
    """Stands for a source that `open` could not give or that would not start, until one does; then it is that one.

    `reason` is why it failed the first time. It tries on the thread that reads.
    """

    def __init__(self, open: Callable[[], Source], camera_id: str, reason: str) -> None:
        self.camera_id = camera_id
        self.is_live = True  # until there is one that knows
        self._open = open
        self._reason = reason
        self._inner: Source | None = None
        self._num_tries = 1
        self._stop = threading.Event()
        self._t_next = time.monotonic() + TRY_AGAIN_S

    def start(self) -> None:
        """See `Source.start`; never raises."""

    def read(self, timeout_s: float) -> Frame | None:
        """See `Source.read`."""
        if self._inner is not None:
            return self._inner.read(timeout_s)
        if time.monotonic() < self._t_next:
            self._stop.wait(timeout_s)
            return None
        self._try()
        return None

    def status(self) -> SourceStatus:
        """See `Source.status`."""
        if self._stop.is_set():
            return SourceStatus(SourceState.ENDED, "stopped")
        if self._inner is not None:
            return self._inner.status()
        return SourceStatus(SourceState.DOWN, self._reason, num_reconnects=self._num_tries)

    def stop(self) -> None:
        """See `Source.stop`."""
        self._stop.set()
        if self._inner is not None:
            self._inner.stop()

    def _try(self) -> None:
        self._t_next = time.monotonic() + TRY_AGAIN_S
        self._num_tries += 1
        inner: Source | None = None
        try:
            inner = self._open()
            inner.start()
        except SourceError as error:
            self._reason = str(error)
            if inner is not None:
                inner.stop()
            return
        self.is_live = inner.is_live
        self._inner = inner
        if self._stop.is_set():  # meanwhile
            inner.stop()

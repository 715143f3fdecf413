"""A live camera as a source: a capture process of its own, watched, killed when it hangs and started again.

Owns the states and the reconnecting. One thread per source starts the process, listens to it and judges the age of the
last picture; it also outlives every process it starts, because the kernel kills a child with the thread that made it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from camera_sources.backoff import Backoff
from camera_sources.base import SourceState, SourceStatus
from camera_sources.capture_process import CaptureProcess, Received
from camera_sources.capture_protocol import Ended, Passed
from camera_sources.frame import Frame, freeze
from camera_sources.pts import LiveClock
from camera_sources.reasons import Reason, explain_ending
from camera_sources.shared_frames import copy_picture
from camera_sources.url import redact

STOP_WAIT_S = 1.8
TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a live source waits for what. `dead_s` also bounds the first picture, counted after `open_s`."""

    open_s: float = 6.0
    read_s: float = 8.0
    stale_s: float = 3.0
    dead_s: float = 10.0
    steady_s: float = 5.0  # live for this long, a connection has proved itself: the next failure counts as the first
    backoff: Backoff = field(default_factory=Backoff)


class LiveSource:
    """A camera named by a stream's URL or a webcam's number. Delivers the newest picture; older ones are counted.

    `num_frames` and `seq` count decoded frames, `num_dropped` those that nobody asked for in time.
    `DOWN` lasts until a picture arrives, through all attempts; its reason is that of the last failure.
    """

    is_live = True

    def __init__(
        self, target: str | int, *, camera_id: str, deadlines: Deadlines | None = None, transport: str = "tcp"
    ) -> None:
        self.camera_id = camera_id
        self._target = target
        self._transport = transport
        self._deadlines = deadlines or Deadlines()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._clock = LiveClock(time.monotonic())
        self._num_failures = 0
        self._changed = threading.Condition()
        # Guarded by `_changed`:
        self._state = SourceState.CONNECTING
        self._reason = ""
        self._newest: tuple[int, float, Received] | None = None  # (seq, pts_s, where it lies)
        self._process: CaptureProcess | None = None
        self._has_wished = False
        self._last_read_seq = -1
        self._num_frames = 0
        self._num_read = 0
        self._num_reconnects = 0
        self._t_frame: float | None = None

    def start(self) -> None:
        """Begin connecting, in the background."""
        self._thread = threading.Thread(target=self._run, name=f"camera {self.camera_id}", daemon=True)
        self._thread.start()

    def read(self, timeout_s: float) -> Frame | None:
        """See `Source.read`: the picture of the newest frame if there is one, else that of the next one.

        An older one that was asked for and came too late to be read is delivered at the deadline.
        """
        deadline = time.monotonic() + timeout_s
        while (newest := self._await_newest(deadline)) is not None:
            seq, pts_s, (picture, mapping) = newest
            shape = (picture.height, picture.width, 3)
            image = copy_picture(mapping, picture.offset, picture.stamp, shape)
            if image is not None:
                return Frame(self.camera_id, seq, picture.t_mono, picture.t_wall, pts_s, freeze(image))
            with self._changed:
                self._num_read -= 1  # overwritten while we copied: a newer one is there
        return None

    def status(self) -> SourceStatus:
        """See `Source.status`."""
        with self._changed:
            unread = 0 if self._newest is None or self._newest[0] <= self._last_read_seq else 1
            return SourceStatus(
                self._state,
                self._reason,
                num_frames=self._num_frames,
                num_dropped=self._num_frames - self._num_read - unread,
                num_reconnects=self._num_reconnects,
                frame_age_s=None if self._t_frame is None else time.monotonic() - self._t_frame,
            )

    def stop(self) -> None:
        """See `Source.stop`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)
        self._set_state(SourceState.ENDED, "stopped")

    def _run(self) -> None:
        """Connect, watch, wait, again. The only way out is `stop()`."""
        while not self._stop.is_set():
            failure = self._watch_one_connection()
            if self._stop.is_set():
                return
            self._num_failures += 1
            backoff = self._deadlines.backoff
            delay_s = backoff.max_s if failure.is_refusal else backoff.delay_s(self._num_failures, random.random())
            self._set_state(SourceState.DOWN, failure.text)
            if self._stop.wait(delay_s):
                return
            with self._changed:
                self._num_reconnects += 1

    def _watch_one_connection(self) -> Reason:
        """Run one capture process until it ends, hangs or we stop; why it is over."""
        t_start = time.monotonic()
        limits = self._deadlines
        try:
            process = CaptureProcess(self._target, limits.open_s, limits.read_s, self._transport)
        except OSError as error:
            return Reason(f"cannot start a capture process: {error.strerror}")
        with process, self._wishing(process):
            t_last: float | None = None
            seq_base = self._num_frames
            while not self._stop.is_set():
                for notice in process.receive(TICK_S):
                    if isinstance(notice, Ended):
                        log, waited_s = process.log(), time.monotonic() - t_start
                        return explain_ending(notice.ending, notice.detail, log, limits.open_s, waited_s)
                    t_last = self._publish(seq_base, notice)
                    if t_last - t_start > limits.steady_s:
                        self._num_failures = 0
                if not process.is_running():
                    return Reason("its capture process died")
                late = self._judge_age(t_last, t_start)
                if late is not None:
                    return late
        return Reason("stopped")

    def _judge_age(self, t_last: float | None, t_start: float) -> Reason | None:
        """The watchdog: mark a silent camera stale; a reason to give the connection up once it is silent too long."""
        limits, now = self._deadlines, time.monotonic()
        if t_last is None:
            limit_s = limits.open_s + limits.dead_s
            return Reason(f"no picture within {limit_s:g} s of connecting") if now - t_start > limit_s else None
        age_s = now - t_last
        if age_s > limits.dead_s:
            return Reason(f"no picture for {limits.dead_s:g} s")
        if age_s > limits.stale_s:
            self._set_state(SourceState.STALE, f"no picture for {age_s:.0f} s")
        return None

    @contextmanager
    def _wishing(self, process: CaptureProcess) -> Iterator[None]:
        """Meanwhile wishes go to `process`, which sends its first picture unasked."""
        with self._changed:
            self._process, self._has_wished = process, True
        try:
            yield
        finally:
            with self._changed:
                self._process = None

    def _publish(self, seq_base: int, notice: Received | Passed) -> float:
        """Take note of one frame; returns when it was decoded."""
        frame = notice if isinstance(notice, Passed) else notice[0]
        pts_s = self._clock.tick(frame.raw_pts_s, frame.t_mono)
        with self._changed:
            seq = seq_base + frame.number
            self._num_frames = seq + 1
            self._t_frame = frame.t_mono
            if self._state is not SourceState.ENDED:
                self._state, self._reason = SourceState.LIVE, ""
            if not isinstance(notice, Passed):
                self._newest = (seq, pts_s, notice)
                self._has_wished = False
                self._changed.notify_all()
        return frame.t_mono

    def _await_newest(self, deadline: float) -> tuple[int, float, Received] | None:
        """A picture not yet read, marked as read; None at the deadline or once stopped."""
        with self._changed:
            least_seq = self._num_frames - 1
            while not self._stop.is_set():
                newest = self._newest if self._newest and self._newest[0] > self._last_read_seq else None
                left_s = deadline - time.monotonic()
                if newest is not None and (newest[0] >= least_seq or left_s <= 0):
                    self._last_read_seq = newest[0]
                    self._num_read += 1
                    return newest
                if left_s <= 0:
                    return None
                self._wish()
                self._changed.wait(left_s)
            return None

    def _wish(self) -> None:
        if self._process is not None and not self._has_wished:
            self._process.wish()
            self._has_wished = True

    def _set_state(self, state: SourceState, reason: str) -> None:
        with self._changed:
            if self._state is not SourceState.ENDED:
                self._state, self._reason = state, redact(reason)
            self._changed.notify_all()

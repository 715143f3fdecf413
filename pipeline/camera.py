"""One camera as the pipeline sees it: source, newest frame, tracks and gate, and how much of it is still under way.

Shared by the thread that reads it, the thread that looks at its frames, and the event loop; every method says which may
call it. Knows nothing of detectors and backends.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from camera_sources.base import Source
from camera_sources.frame import Frame
from pipeline.config import GateConfig
from pipeline.events import Detection, Selection, Track
from pipeline.gate import Gate, Verdict
from pipeline.mailbox import Mailbox
from pipeline.rate import Sampler
from pipeline.tracker import Tracker

MEASURED_S = 3.0  # window over which the detector's rate is measured
PREVIEW_FPS = 5.0


class Camera:
    """State of one camera. `paced` cameras drop what they cannot handle; others wait for every caption.

    `on_idle` is called, from any thread, when nothing of this camera is under way any more.
    """

    def __init__(
        self,
        source: Source,
        gate: GateConfig,
        *,
        paced: bool,
        detector_fps: float,
        arrived: threading.Condition,
        on_idle: Callable[[], None],
    ) -> None:
        self.source = source
        self.paced = paced
        self.sampler = Sampler(detector_fps)
        self.mailbox: Mailbox[Frame] = Mailbox(1, arrived)
        self.num_detected = 0
        self._preview = Sampler(PREVIEW_FPS)
        self._tracker = Tracker(gate)
        self._gate = Gate(gate)
        self._gate_lock = threading.Lock()
        self._now: tuple[float, float] = (0.0, 0.0)  # the last judged frame: gate's clock, monotonic
        self._t_detected: deque[float] = deque()
        self._on_idle = on_idle
        self._idle = threading.Condition()
        self._num_under_way = 0
        self._reading = True

    @property
    def camera_id(self) -> str:
        """Its name."""
        return self.source.camera_id

    def clock_of(self, frame: Frame) -> float:
        """The gate's clock at a frame: PTS for files, monotonic for live sources."""
        return frame.t_mono if self.source.is_live else frame.pts_s

    # The reading thread

    def hand_over(self, frame: Frame) -> None:
        """A frame to look at. Pushes out the one that still waits."""
        self.hold()
        if self.mailbox.put(frame) is not None:
            self.release()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Whether everything handed over has been looked at and all its events were kept."""
        with self._idle:
            return self._idle.wait_for(lambda: self._num_under_way == 0, timeout_s)

    def reading_ended(self) -> None:
        """No more frames will come."""
        self._reading = False
        self._on_idle()

    # The looking thread

    def judge(self, detection: Detection) -> tuple[Verdict, Selection | None]:
        """Track and gate one detection; a selection is the verdict's choice made into an event to be."""
        frame = detection.frame
        now_s = self.clock_of(frame)
        tracks: Sequence[Track] = self._tracker.update(detection, now_s)
        with self._gate_lock:
            self._now = (now_s, frame.t_mono)
            verdict = self._gate.update(now_s, tracks)
            if verdict.choice is None:
                return verdict, None
            event_id = uuid.uuid4().hex
            self._gate.selected(event_id, now_s, verdict)
        choice = verdict.choice
        selection = Selection(event_id, frame, verdict.in_view, choice.subject_ids, choice.reason, time.monotonic())
        return verdict, selection

    def wants_preview(self, frame: Frame) -> bool:
        """Whether a picture for the page is due."""
        return self._preview.try_take(frame.t_mono)

    def note_detected(self, t_mono: float) -> None:
        """The detector looked at one frame."""
        self.num_detected += 1
        self._t_detected.append(t_mono)

    # The event loop

    def note_sent(self, event_id: str, t_sent: float) -> None:
        """A caption was sent: the cooldown starts, on the gate's clock."""
        with self._gate_lock:
            clock_s, t_mono = self._now
            self._gate.sent(event_id, clock_s + (t_sent - t_mono if self.paced else 0.0))

    def note_kept(self, event_id: str) -> None:
        """An event is over and kept."""
        with self._gate_lock:
            self._gate.ended(event_id)
        self.release()

    def detector_fps(self, t_mono: float) -> float:
        """Detections per second, measured over the last seconds."""
        while self._t_detected and self._t_detected[0] < t_mono - MEASURED_S:
            self._t_detected.popleft()
        return len(self._t_detected) / MEASURED_S

    @property
    def is_over(self) -> bool:
        """Whether the source has ended and nothing of it is under way."""
        with self._idle:
            return not self._reading and self._num_under_way == 0

    # Any thread

    def hold(self) -> None:
        """One more frame or event is under way."""
        with self._idle:
            self._num_under_way += 1

    def release(self) -> None:
        """One frame or event less."""
        with self._idle:
            self._num_under_way -= 1
            idle = self._num_under_way == 0
            if idle:
                self._idle.notify_all()
        if idle:
            self._on_idle()

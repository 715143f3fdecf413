"""One camera as the pipeline sees it: source, newest frame, tracks and gate, and how much of it is still under way.

Shared by the thread that reads it, the thread that looks at its frames, and the event loop; every method says which may
call it. Knows nothing of detectors and backends.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from camera_sources.base import Source
from camera_sources.frame import Frame
from pipeline.config import CameraConfig, GateConfig
from pipeline.events import Detection, Selection, Track
from pipeline.gate import Choice, Gate, Verdict
from pipeline.mailbox import Mailbox
from pipeline.rate import Sampler
from pipeline.tracker import Tracker
from pipeline.zones import counted

MEASURED_S = 3.0  # window over which the detector's rate is measured
PREVIEW_FPS = 5.0
REFRESH_S = 0.2  # a frame that waits for the detector gives way to one so much newer


@dataclass(frozen=True, slots=True)
class Moment:
    """One frame as it was judged: who was in view, and how many persons were detected at all."""

    frame: Frame
    tracks: tuple[Track, ...]
    num_detected: int


class Camera:
    """State of one camera. `paced` cameras drop what they cannot handle; others wait for every caption.

    `on_idle` is called, from any thread, when nothing of this camera is under way any more.
    """

    def __init__(
        self,
        source: Source,
        config: CameraConfig,
        gate: GateConfig,
        *,
        paced: bool,
        detector_fps: float,
        arrived: threading.Condition,
        on_idle: Callable[[], None],
    ) -> None:
        self.source = source
        self.config = config
        self.paced = paced
        self.wanted_fps = detector_fps
        self.sampler = Sampler(detector_fps)
        self.mailbox: Mailbox[Frame] = Mailbox(1, arrived)
        self.num_detected = 0
        self.t_looked = float("-inf")  # when the detector last looked, monotonic
        self._t_handed = float("-inf")
        self._preview = Sampler(PREVIEW_FPS)
        self._least_conf = gate.min_confidence / 2
        self._tracker = Tracker(gate)
        self._gate = Gate(gate)
        self._moments: dict[int, Moment] = {}  # of tracks that no selection has shown
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

    def change(self, config: CameraConfig, gate: GateConfig, detector_fps: float) -> None:
        """Go by other settings from the next frame on, with the same tracks; from any thread. See `reads_like`."""
        with self._gate_lock:
            self.config = config
            self._least_conf = gate.min_confidence / 2
            self._tracker.change(gate)
            self._gate.change(gate)
        if detector_fps != self.wanted_fps:
            self.wanted_fps = detector_fps
            self.sampler = Sampler(detector_fps)  # what the machine affords of it is found out with the next frame

    # The reading thread

    def wants(self, frame: Frame) -> bool:
        """Whether `frame` is to be handed over: it is due, or newer than one that was and has waited for too long."""
        if self.sampler.try_take(self.clock_of(frame)):
            return True
        return self.paced and len(self.mailbox) > 0 and frame.t_mono - self._t_handed >= REFRESH_S

    def rest_s(self, t_mono: float) -> float:
        """How long no frame is wanted: a live camera need not be read before, and reading a picture costs something."""
        if not self.source.is_live:
            return 0.0
        refresh = self._t_handed + REFRESH_S if len(self.mailbox) else float("inf")
        return max(0.0, min(self.sampler.due, refresh) - t_mono)

    def hand_over(self, frame: Frame) -> None:
        """A frame to look at. Pushes out the one that still waits."""
        self.hold()
        self._t_handed = frame.t_mono
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
        """Track and gate one detection; a selection is the verdict's choice made into an event to be, under way."""
        frame = detection.frame
        now_s = self.clock_of(frame)
        height, width = frame.image.shape[:2]
        boxes = tuple(box for box in detection.boxes if box.conf >= self._least_conf)
        tracks = self._tracker.update(Detection(frame, boxes), now_s)
        with self._gate_lock:
            self._now = (now_s, frame.t_mono)
            verdict = self._gate.update(now_s, counted(tracks, self.config, width, height))
            moment = Moment(frame, verdict.in_view, len(boxes))
            fresh = dict.fromkeys(verdict.fresh_ids, moment)
            self._moments = {i: fresh.get(i) or self._moments[i] for i in self._gate.untold_ids}
            return verdict, None if verdict.choice is None else self._select(verdict.choice, now_s, moment)

    def judge_left_over(self, t_mono: float) -> Selection | None:
        """A selection of people who went before it was their turn, once it is; their picture is a past one."""
        with self._gate_lock:
            if not self._moments:
                return None
            is_end = not self._reading and not len(self.mailbox)
            if not self.paced and not is_end:
                return None  # its clock stands between frames
            clock_s, t_frame = self._now
            now_s = clock_s + max(0.0, t_mono - t_frame)
            choice = self._gate.overdue(now_s, is_end=is_end)
            return None if choice is None else self._select(choice, now_s, None)

    def _select(self, choice: Choice, now_s: float, present: Moment | None) -> Selection:
        moment = self._moments[choice.subject_ids[0]] if choice.is_past or present is None else present
        event_id = uuid.uuid4().hex
        self._gate.selected(event_id, now_s, choice, moment.tracks)
        self._moments = {i: self._moments[i] for i in self._gate.untold_ids}
        self.hold()  # the event to be
        return Selection(
            event_id,
            moment.frame,
            moment.tracks,
            choice.subject_ids,
            choice.reason,
            time.monotonic(),
            moment.num_detected,
        )

    def wants_preview(self, frame: Frame) -> bool:
        """Whether a picture for the page is due."""
        return self._preview.try_take(frame.t_mono)

    def note_detected(self, t_mono: float) -> None:
        """The detector looked at one frame."""
        self.num_detected += 1
        self.t_looked = t_mono
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
        """Whether the source has ended and nothing of it is under way or left over."""
        with self._idle:
            return not self._reading and self._num_under_way == 0 and not self._moments

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

"""The thread that looks: takes due frames of all cameras, detects in one batch, judges each, passes on what follows.

Owns the detector's pace: it measures the CPU time a frame costs and slows paced cameras down to a share of one core.
Knows nothing of captions but that a selection becomes a job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from pipeline.camera import Camera
from pipeline.config import PipelineConfig
from pipeline.detector import Detector
from pipeline.events import CaptionJob, Detection, Selection, Track
from pipeline.feed import Feed, FrameSeen
from pipeline.prompt import build_job, encode_jpeg
from pipeline.rate import affordable_fps

log = logging.getLogger(__name__)

POLL_S = 0.2
LOOK_S = 0.2  # what one batch may take: frames age while they wait for the others of their batch
COST_WEIGHT = 0.2  # of the newest measurement in the running mean
PREVIEW_LONG_SIDE = 640
PREVIEW_QUALITY = 75


class Perception:
    """Looks at `cameras`, whose mailboxes share `arrived`. `on_job` and `on_tracks_ended` are called on its thread.

    `cameras` may be set to others at any time; what was taken of one that is gone is still told.

    A detector that breaks ends the thread; `on_failure` is told one line.
    """

    def __init__(
        self,
        config: PipelineConfig,
        detector: Detector,
        feed: Feed,
        arrived: threading.Condition,
        *,
        on_job: Callable[[Camera, CaptionJob], None],
        on_tracks_ended: Callable[[Camera, tuple[int, ...]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._config = config
        self._detector = detector
        self._feed = feed
        self._arrived = arrived
        self._on_job = on_job
        self._on_tracks_ended = on_tracks_ended
        self._on_failure = on_failure
        self.cameras: Sequence[Camera] = ()
        self._stopping = threading.Event()
        self._cost_s: float | None = None  # CPU time of a frame, a running mean
        self._look_s = LOOK_S  # wall time of a frame in the last batch
        self._thread = threading.Thread(target=self._run, name="perception", daemon=True)

    def start(self) -> None:
        """Begin looking."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End after the batch under way. Callable more than once, and before `start`."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if due := self._wait_for_frames():
                    self._look(due)
                self._catch_up()
        except Exception as error:
            log.exception("the detector broke")
            self._on_failure(f"the detector broke: {error!r}")

    def _wait_for_frames(self) -> list[Camera]:
        """Cameras with a frame waiting, after up to `POLL_S`: as many as fit one batch, the longest unseen first."""
        with self._arrived:
            self._arrived.wait_for(lambda: any(len(camera.mailbox) for camera in self.cameras), POLL_S)
        waiting = sorted((camera for camera in self.cameras if len(camera.mailbox)), key=lambda camera: camera.t_looked)
        return waiting[: max(1, int(LOOK_S / self._look_s))]

    def _look(self, due: Sequence[Camera]) -> None:
        cpu_s, t_began = time.thread_time(), time.monotonic()
        taken = [(camera, frame) for camera in due if (frame := camera.mailbox.try_take()) is not None]
        detections = self._detector.detect([frame for _, frame in taken])
        for (camera, _), detection in zip(taken, detections, strict=True):
            camera.note_detected(time.monotonic())
            self._judge(camera, detection)
            camera.release()
        self._look_s = max(1e-6, time.monotonic() - t_began) / len(taken)
        self._slow_down((time.thread_time() - cpu_s) / len(taken))

    def _judge(self, camera: Camera, detection: Detection) -> None:
        verdict, selection = camera.judge(detection)
        if verdict.ended_ids:
            self._on_tracks_ended(camera, verdict.ended_ids)
        if selection is not None:
            self._order(camera, selection)
        self._preview(camera, detection, verdict.in_view)

    def _catch_up(self) -> None:
        """People who went before it was their turn: their turn may have come without a new frame."""
        for camera in self.cameras:
            if (selection := camera.judge_left_over(time.monotonic())) is not None:
                self._order(camera, selection)

    def _order(self, camera: Camera, selection: Selection) -> None:
        self._on_job(camera, build_job(selection, camera.config, self._config))

    def _preview(self, camera: Camera, detection: Detection, tracks: tuple[Track, ...]) -> None:
        frame = detection.frame
        if not self._feed.has_subscribers or not camera.wants_preview(frame):
            return
        height, width = frame.image.shape[:2]
        jpeg = encode_jpeg(frame.image, PREVIEW_LONG_SIDE, PREVIEW_QUALITY)
        self._feed.publish(FrameSeen(camera.camera_id, frame.seq, width, height, jpeg, tracks, frame.t_mono))

    def _slow_down(self, cost_s: float) -> None:
        self._cost_s = cost_s if self._cost_s is None else self._cost_s + COST_WEIGHT * (cost_s - self._cost_s)
        paced = [camera for camera in self.cameras if camera.paced and not camera.is_over]
        for camera in paced:
            camera.sampler.fps = affordable_fps(self._cost_s, len(paced), camera.wanted_fps)

"""The pipeline put together: cameras are read and looked at on threads, captions are made on the event loop.

Owns start, stop and the end of everything. The parts: `reader` (thread per camera), `perception` (one thread), `lane`
(one task per camera), `ledger` (what ends is kept, then announced).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace

from camera_sources import cv
from camera_sources.base import Source, SourceState
from camera_sources.images import ImagesSource
from camera_sources.open import open_source
from pipeline.archive import Archive
from pipeline.camera import Camera
from pipeline.captioner import Captioner, OpenAICaptioner
from pipeline.config import CameraConfig, GateConfig, PipelineConfig
from pipeline.detector import Detector, YoloDetector
from pipeline.events import CaptionJob, Event
from pipeline.feed import CameraChanged, Feed
from pipeline.jsonl import JsonlWriter
from pipeline.lane import CaptionLane, at_once
from pipeline.ledger import Ledger
from pipeline.perception import Perception
from pipeline.reader import Reader
from pipeline.status import CameraReading, PipelineReading

log = logging.getLogger(__name__)

WATCH_S = 0.2  # how often states are looked at
REPORT_S = 1.0  # how often an unchanged state is reported
THREAD_S = 2.5  # longest wait for a thread at stop


class PipelineError(Exception):
    """The pipeline broke and has to be started anew. One line."""


def open_camera(config: CameraConfig) -> Source:
    """The source of a camera, not started. Raises `SourceError`."""
    return open_source(config.source, camera_id=config.camera_id, loop=config.loop, realtime=config.realtime)


def gate_for(source: Source, config: GateConfig) -> GateConfig:
    """The gate's settings for a source. Photographs of a folder are scenes of their own: nobody is seen twice in a row
    there, or still under way from one to the next, so each picture with people is worth a caption."""
    if isinstance(source, ImagesSource):
        return replace(config, min_hits=1, cooldown_s=0.0, lost_s=0.0)
    return config


class Pipeline:
    """Cameras in, captioned events out: to `store`, `jsonl` and `feed`. Lives on one event loop; starts once.

    `detector`, `captioner` and `open` replace the real parts by others that keep the same protocol; `ready` is awaited
    before each caption (see `CaptionLane`).
    """

    def __init__(
        self,
        config: PipelineConfig,
        cameras: Sequence[CameraConfig],
        *,
        store: Archive | None,
        feed: Feed,
        jsonl: JsonlWriter | None = None,
        detector: Detector | None = None,
        captioner: Captioner | None = None,
        open: Callable[[CameraConfig], Source] = open_camera,
        ready: Callable[[], Awaitable[None]] = at_once,
    ) -> None:
        ids = [camera.camera_id for camera in cameras]
        if len(set(ids)) < len(ids):
            raise ValueError(f"camera ids must differ: {', '.join(ids)}")
        self._config = config
        self._camera_configs = tuple(cameras)
        self._feed = feed
        self._detector = detector
        self._captioner = captioner or OpenAICaptioner(config)
        self._open = open
        self._ready = ready
        self._ledger = Ledger(store=store, jsonl=jsonl, feed=feed, on_kept=self._event_kept)
        self._arrived = threading.Condition()
        self._cameras: dict[str, Camera] = {}
        self._lanes: dict[str, CaptionLane] = {}
        self._readers: list[Reader] = []
        self._perception: Perception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reported: dict[str, tuple[SourceState, float]] = {}
        self._over = asyncio.Event()
        self._failure: str | None = None
        self._stopped = False

    async def start(self) -> None:
        """See that OpenCV works, load the detector, open every source and begin.

        Raises `DetectorError` or `SourceError` for what can be known at once; nothing is left running then.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(cv.check)
            detector = self._detector or await asyncio.to_thread(self._load_detector)
            for camera_config in self._camera_configs:
                await self._add(camera_config)
        except BaseException:
            await self.stop()
            raise
        self._ledger.start()
        for camera_id, lane in self._lanes.items():
            self._spawn(lane.run(), f"lane-{camera_id}")
        self._spawn(self._watch(), "watch")
        self._perception = Perception(
            self._config,
            detector,
            self._feed,
            self._arrived,
            on_job=lambda camera, job: self._call(self._submit, camera, job),
            on_tracks_ended=lambda camera, ids: self._call(self._lanes[camera.camera_id].end_tracks, ids),
            on_failure=lambda message: self._call(self._fail, message),
        )
        self._perception.start(tuple(self._cameras.values()))
        for reader in self._readers:
            reader.start()

    async def stop(self) -> None:
        """End everything within a few seconds: what is under way ends as CANCELLED, is kept and announced.

        Callable more than once.
        """
        if self._stopped:
            return
        self._stopped = True
        stops = [asyncio.to_thread(reader.stop, THREAD_S) for reader in self._readers]
        if self._perception is not None:
            stops.append(asyncio.to_thread(self._perception.stop, THREAD_S))
        await asyncio.gather(*stops)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._ledger.close()
        await self._captioner.close()
        self._over.set()

    async def wait_ended(self) -> None:
        """Return when all sources have ended and every event has. Raises `PipelineError` if the pipeline broke."""
        await self._over.wait()
        if self._failure is not None:
            raise PipelineError(self._failure)

    def status(self) -> PipelineReading:
        """Where everything stands now. Call it on the event loop."""
        now = time.monotonic()
        return PipelineReading(
            tuple(self._reading(camera, now) for camera in self._cameras.values()),
            dict(self._ledger.num_by_status),
            self._failure,
        )

    def _load_detector(self) -> Detector:
        return YoloDetector(
            self._config.detector, min_confidence=self._config.gate.min_confidence, cache_dir=self._config.cache_dir
        )

    async def _add(self, config: CameraConfig) -> None:
        source = self._open(config)
        camera = Camera(
            source,
            gate_for(source, self._config.gate),
            paced=config.realtime or source.is_live,
            detector_fps=self._config.detector_fps,
            arrived=self._arrived,
            on_idle=lambda: self._call(self._check_over),
        )
        self._cameras[config.camera_id] = camera
        self._lanes[config.camera_id] = CaptionLane(
            self._captioner, self._ledger, self._feed, self._config.retry, camera.note_sent, self._ready
        )
        self._readers.append(Reader(camera))
        await asyncio.to_thread(source.start)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s broke", task.get_name(), exc_info=error)
            self._fail(f"{task.get_name()} broke: {error!r}")

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Run `function` on the event loop; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _submit(self, camera: Camera, job: CaptionJob) -> None:
        self._lanes[camera.camera_id].submit(job)

    def _event_kept(self, event: Event) -> None:
        self._cameras[event.camera].note_kept(event.event_id)

    def _check_over(self) -> None:
        if all(camera.is_over for camera in self._cameras.values()):
            if not self._stopped:  # else it is our own doing, and no news
                self._report()
            self._over.set()

    def _fail(self, message: str) -> None:
        self._failure = message
        self._over.set()

    def _reading(self, camera: Camera, now: float) -> CameraReading:
        lane = self._lanes[camera.camera_id]
        return CameraReading(
            camera.camera_id,
            camera.source.status(),
            camera.detector_fps(now),
            camera.num_detected,
            camera.mailbox.num_dropped,
            lane.num_queued,
            lane.in_flight,
        )

    async def _watch(self) -> None:
        while not self._stopped:
            self._report()
            await asyncio.sleep(WATCH_S)

    def _report(self) -> None:
        """Announce every camera whose state changed or that was silent for a second."""
        now = time.monotonic()
        for camera in self._cameras.values():
            status = camera.source.status()
            state, t_reported = self._reported.get(camera.camera_id, (None, 0.0))
            if status.state is not state or now - t_reported >= REPORT_S:
                self._reported[camera.camera_id] = (status.state, now)
                fps, is_live = camera.detector_fps(now), camera.source.is_live
                self._feed.publish(CameraChanged(camera.camera_id, status, fps, is_live))

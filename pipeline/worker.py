"""The pipeline put together: cameras are read and looked at on threads, captions are made on the event loop.

Owns start, stop and the end of everything, and what the parts tell each other: `station` (all of one camera), `lineup`
(which cameras there are), `perception` (one thread), `ledger` (what ends is kept, then announced), `reporter` (how
cameras are).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from camera_sources import cv
from camera_sources.base import Source
from pipeline.archive import Archive
from pipeline.camera import Camera
from pipeline.captioner import Captioner, OpenAICaptioner
from pipeline.config import CameraConfig, PipelineConfig
from pipeline.detector import Detector, YoloDetector
from pipeline.events import CaptionJob, Event
from pipeline.feed import Feed
from pipeline.jsonl import JsonlWriter
from pipeline.ledger import Ledger
from pipeline.lineup import Lineup
from pipeline.perception import Perception
from pipeline.reporter import Reporter
from pipeline.retry import at_once
from pipeline.station import THREAD_S, Station, open_camera
from pipeline.stations import Stations
from pipeline.status import PipelineReading

log = logging.getLogger(__name__)

LEAST_CONFIDENCE = 0.1
"""What a camera's `min_confidence` may be at least: the detector is asked for all that any camera could want."""


class PipelineError(Exception):
    """The pipeline broke and has to be started anew. One line."""


class Pipeline:
    """Cameras in, captioned events out: to `store`, `jsonl` and `feed`. Lives on one event loop; starts once.

    `detector`, `captioner` and `open` replace the real parts by others that keep the same protocol; `ready` is awaited
    before each caption (see `CaptionLane`). Cameras are added, replaced and removed while the others run on. If
    `patient`, a camera to begin with that cannot start is down and tried again, and keeps no other from starting.
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
        patient: bool = False,
    ) -> None:
        ids = [camera.camera_id for camera in cameras]
        if len(set(ids)) < len(ids):
            raise ValueError(f"camera ids must differ: {', '.join(ids)}")
        self._config = config
        self._camera_configs = tuple(cameras)
        self._feed = feed
        self._detector = detector
        self._captioner = captioner or OpenAICaptioner(config)
        self._ready = ready
        self._patient = patient
        self._ledger = Ledger(store=store, jsonl=jsonl, feed=feed, on_kept=self._event_kept)
        self._arrived = threading.Condition()
        self._stations = Stations()
        self._perception: Perception | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._reporter = Reporter(feed, lambda: self._stations.cameras)
        self._lineup = Lineup(
            self._stations,
            feed,
            open=open,
            make=self._station,
            on_changed=self._show_cameras,
            on_begun=self._watch_task,
            on_gone=self._gone,
        )
        self._over = asyncio.Event()
        self._broken = asyncio.Event()
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
            for config in self._camera_configs:
                await self._lineup.open_first(config, patient=self._patient)
        except BaseException:
            await self.stop()
            raise
        self._ledger.start()
        self._reporting = asyncio.create_task(self._reporter.run(), name="watch")
        self._watch_task(self._reporting)
        self._perception = Perception(
            self._config,
            detector,
            self._feed,
            self._arrived,
            on_job=lambda camera, job: self._call(self._submit, camera, job),
            on_tracks_ended=lambda camera, ids: self._call(self._end_tracks, camera, ids),
            on_failure=lambda message: self._call(self._fail, message),
        )
        self._perception.start()
        self._lineup.begin()

    async def add(self, config: CameraConfig) -> None:
        """See `Lineup.add`."""
        await self._lineup.add(config)

    async def remove(self, camera_id: str) -> None:
        """See `Lineup.remove`."""
        await self._lineup.remove(camera_id)

    async def replace(self, camera_id: str, config: CameraConfig) -> None:
        """See `Lineup.replace`."""
        await self._lineup.replace(camera_id, config)

    async def stop(self) -> None:
        """End everything within a few seconds: what is under way ends as CANCELLED, is kept and announced.

        Callable more than once.
        """
        if self._stopped:
            return
        self._stopped = True
        self._lineup.close()
        if self._reporting is not None:  # first of all: that the cameras end is our own doing, and no news
            self._reporting.cancel()
        stops = [station.close() for station in self._stations]
        if self._perception is not None:
            stops.append(asyncio.to_thread(self._perception.stop, THREAD_S))
        await asyncio.gather(*stops)
        if self._reporting is not None:
            await asyncio.gather(self._reporting, return_exceptions=True)
        await self._ledger.close()
        await self._captioner.close()
        self._over.set()

    async def wait_ended(self) -> None:
        """Return when all sources have ended and every event has. Raises `PipelineError` if the pipeline broke."""
        await self._over.wait()
        if self._failure is not None:
            raise PipelineError(self._failure)

    async def wait_broken(self) -> NoReturn:
        """Raise `PipelineError` when the pipeline breaks, also after all sources ended: others may be added then."""
        await self._broken.wait()
        raise PipelineError(self._failure)

    def status(self) -> PipelineReading:
        """Where everything stands now. Call it on the event loop."""
        now = time.monotonic()
        return PipelineReading(
            tuple(station.reading(now) for station in self._stations),
            dict(self._ledger.num_by_status),
            self._failure,
        )

    def _load_detector(self) -> Detector:
        return YoloDetector(self._config.detector, min_confidence=LEAST_CONFIDENCE, cache_dir=self._config.cache_dir)

    def _station(self, config: CameraConfig, source: Source) -> Station:
        return Station(
            config,
            source,
            self._config,
            self._captioner,
            self._ledger,
            self._feed,
            self._arrived,
            on_idle=lambda: self._call(self._check_over),
            ready=self._ready,
        )

    def _show_cameras(self) -> None:
        if self._perception is not None:
            self._perception.cameras = self._stations.cameras

    def _gone(self, camera_id: str) -> None:
        self._reporter.forget(camera_id)
        self._check_over()

    def _watch_task(self, task: asyncio.Task[None]) -> None:
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s broke", task.get_name(), exc_info=error)
            self._fail(f"{task.get_name()} broke: {error!r}")

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Run `function` on the event loop; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _submit(self, camera: Camera, job: CaptionJob) -> None:
        station = self._stations.find(camera)
        if station is None:
            camera.release()  # removed while this was on its way
            return
        self._stations.open_event(job.selection.event_id, station)
        station.lane.submit(job)

    def _end_tracks(self, camera: Camera, track_ids: tuple[int, ...]) -> None:
        if (station := self._stations.find(camera)) is not None:
            station.lane.end_tracks(track_ids)

    def _event_kept(self, event: Event) -> None:
        self._stations.close_event(event.event_id).camera.note_kept(event.event_id)

    def _check_over(self) -> None:
        if self._stations.are_over:
            if not self._stopped:  # else it is our own doing, and no news
                self._reporter.report()
            self._over.set()

    def _fail(self, message: str) -> None:
        self._failure = message
        self._broken.set()
        self._over.set()

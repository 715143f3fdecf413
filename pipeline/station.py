"""One camera at work: its source, the thread that reads it, its state, and its lane to the backend, as one thing.

So that a camera can come and go, or break, by itself. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

from camera_sources.base import Source
from camera_sources.images import ImagesSource
from camera_sources.open import open_source
from pipeline.camera import Camera
from pipeline.captioner import Captioner
from pipeline.config import CameraConfig, GateConfig, PipelineConfig
from pipeline.feed import Feed
from pipeline.lane import CaptionLane
from pipeline.ledger import Ledger
from pipeline.reader import Reader
from pipeline.status import CameraReading

THREAD_S = 2.5  # longest wait for a thread at the end


def open_camera(config: CameraConfig) -> Source:
    """The source of a camera, not started. Raises `SourceError`."""
    return open_source(
        config.source,
        camera_id=config.camera_id,
        loop=config.loop,
        realtime=config.realtime,
        transport=config.transport or "tcp",
    )


def gate_for(source: Source, config: GateConfig) -> GateConfig:
    """The gate's settings for a source. Photographs of a folder are scenes of their own: nobody is seen twice in a row
    there, or still under way from one to the next, so each picture with people is worth a caption."""
    if isinstance(source, ImagesSource):
        return replace(config, min_hits=1, cooldown_s=0.0, lost_s=0.0)
    return config


class Station:
    """All of one camera. `open`, then `begin`, then `close`; each once, `close` at any time after the constructor."""

    def __init__(
        self,
        config: CameraConfig,
        source: Source,
        pipeline: PipelineConfig,
        captioner: Captioner,
        ledger: Ledger,
        feed: Feed,
        arrived: threading.Condition,
        *,
        on_idle: Callable[[], None],
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self.config = config
        self._pipeline = pipeline
        self.camera = Camera(
            source,
            config,
            gate_for(source, config.gate or pipeline.gate),
            paced=config.realtime or source.is_live,
            detector_fps=config.detector_fps or pipeline.detector_fps,
            arrived=arrived,
            on_idle=on_idle,
        )
        self.lane = CaptionLane(captioner, ledger, feed, pipeline.retry, self.camera.note_sent, ready)
        self._reader = Reader(self.camera)
        self._captioning: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the source. Raises `SourceError`."""
        await asyncio.to_thread(self.camera.source.start)

    def begin(self) -> asyncio.Task[None]:
        """Read frames, and caption what is submitted: the task that does so."""
        self._reader.start()
        self._captioning = asyncio.create_task(self.lane.run(), name=f"lane-{self.camera.camera_id}")
        return self._captioning

    async def close(self) -> None:
        """End reading and captioning within a few seconds; what is queued or in flight ends as CANCELLED."""
        await asyncio.to_thread(self._reader.stop, THREAD_S)
        if self._captioning is not None:
            self._captioning.cancel()
            await asyncio.gather(self._captioning, return_exceptions=True)

    def change(self, config: CameraConfig) -> None:
        """Go by other settings at once; they must read like the present ones. What is queued stays as it was made."""
        self.config = config
        gate = gate_for(self.camera.source, config.gate or self._pipeline.gate)
        self.camera.change(config, gate, config.detector_fps or self._pipeline.detector_fps)

    def reading(self, t_mono: float) -> CameraReading:
        """Its counters now."""
        camera = self.camera
        return CameraReading(
            camera.camera_id,
            camera.source.status(),
            camera.detector_fps(t_mono),
            camera.num_detected,
            camera.mailbox.num_dropped,
            self.lane.num_queued,
            self.lane.in_flight,
        )

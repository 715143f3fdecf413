"""Announces how cameras are: every change of a state, and once a second that nothing changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from camera_sources.base import SourceState
from pipeline.camera import Camera
from pipeline.feed import CameraChanged, Feed

WATCH_S = 0.2  # how often states are looked at
REPORT_S = 1.0  # how often an unchanged state is reported


class Reporter:
    """Looks at the cameras that `cameras` gives at the moment and tells `feed`. Lives on the event loop."""

    def __init__(self, feed: Feed, cameras: Callable[[], Sequence[Camera]]) -> None:
        self._feed = feed
        self._cameras = cameras
        self._reported: dict[str, tuple[SourceState, float]] = {}

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self.report()
            await asyncio.sleep(WATCH_S)

    def report(self) -> None:
        """Announce every camera whose state changed or that was silent for a second."""
        now = time.monotonic()
        for camera in self._cameras():
            status = camera.source.status()
            state, t_reported = self._reported.get(camera.camera_id, (None, 0.0))
            if status.state is not state or now - t_reported >= REPORT_S:
                self._reported[camera.camera_id] = (status.state, now)
                fps, is_live = camera.detector_fps(now), camera.source.is_live
                self._feed.publish(CameraChanged(camera.camera_id, status, fps, is_live, camera.config.zones))

    def forget(self, camera_id: str) -> None:
        """A camera is gone."""
        self._reported.pop(camera_id, None)

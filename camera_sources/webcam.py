"""A camera plugged into this machine, by its number. Read by a process of its own like a network camera."""

from __future__ import annotations

import sys
from pathlib import Path

from camera_sources.base import SourceError
from camera_sources.live import Deadlines, LiveSource


class WebcamSource(LiveSource):
    """The webcam `number`, as the operating system counts them from 0. Unplugged later on, it is down and retried."""

    def __init__(self, number: int, *, camera_id: str, deadlines: Deadlines | None = None) -> None:
        super().__init__(number, camera_id=camera_id, deadlines=deadlines)
        self._device = Path(f"/dev/video{number}")

    def start(self) -> None:
        """Begin reading. Raises `SourceError` if there is no such webcam now."""
        self.require_device()
        super().start()

    def require_device(self) -> None:
        """Raise `SourceError` if there is no such webcam now."""
        if sys.platform == "linux" and not self._device.exists():
            raise SourceError(f"webcam {self._device.name[5:]}: there is no {self._device}; is the camera plugged in?")

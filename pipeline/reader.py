"""The thread that reads one camera and hands over the frames that are due. A dead source ends its camera, no other."""

from __future__ import annotations

import logging
import threading
import time

from camera_sources.base import SourceState
from pipeline.camera import Camera

log = logging.getLogger(__name__)

POLL_S = 0.2


class Reader:
    """Reads `camera` until its source ends or `stop` is called. An unpaced camera waits here for its captions."""

    def __init__(self, camera: Camera) -> None:
        self._camera = camera
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"read-{camera.camera_id}", daemon=True)

    def start(self) -> None:
        """Begin; the source must have been started."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End reading, stop the source and wait for the thread. Callable more than once, and before `start`."""
        self._stopping.set()
        self._camera.source.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._read()
        except Exception:
            log.exception("camera %s: reading broke; it is not read any more", self._camera.camera_id)
            self._camera.source.stop()
        finally:
            self._camera.reading_ended()

    def _read(self) -> None:
        camera, source = self._camera, self._camera.source
        while not self._stopping.wait(min(camera.rest_s(time.monotonic()), POLL_S)):
            if camera.rest_s(time.monotonic()) > 0:
                continue  # the detector's rate may have changed meanwhile
            frame = source.read(POLL_S)
            if frame is None:
                if source.status().state is SourceState.ENDED:
                    return
            elif camera.wants(frame):
                camera.hand_over(frame)
                if not camera.paced:
                    self._wait_until_idle()

    def _wait_until_idle(self) -> None:
        while not self._stopping.is_set() and not self._camera.wait_until_idle(POLL_S):
            pass

"""A video file as a source: every frame, or, when paced, the frames a live viewer would see.

Owns pacing, looping and the file's end; knows nothing of containers and codecs (see `clip.py`). There is no thread: the
reader's own calls decode, so a slow reader of an unpaced file simply makes it wait.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from camera_sources.base import SourceError, SourceState, SourceStatus
from camera_sources.clip import Clip, open_clip
from camera_sources.frame import Frame, freeze
from camera_sources.pts import FileClock
from camera_sources.url import redact

MAX_CATCH_UP_S = 0.5  # longest that one read decodes frames nobody will see; then the playback slips instead
STOP_WAIT_S = 1.5  # a file on a dead network share may hold its reader longer than `stop()` may take


class VideoSource:
    """One video file. `realtime` paces it by its timestamps and skips (and counts) frames whose successor is due too.

    `num_frames` and `seq` count decoded frames, of which `num_dropped` were skipped. With `loop`, PTS and `seq` go on
    growing over the seam. The end is `ENDED`, with a reason if the file broke off early.
    """

    is_live = False

    def __init__(
        self, path: str | os.PathLike[str], *, camera_id: str, loop: bool = False, realtime: bool = True
    ) -> None:
        self.camera_id = camera_id
        self._path = Path(path)
        self._loop = loop
        self._realtime = realtime
        self._stop = threading.Event()
        self._decoding = threading.Lock()  # the capture belongs to whoever holds it
        self._clip: Clip | None = None
        self._clock = FileClock(0.0)
        self._state = (SourceState.CONNECTING, "")
        self._due_pts_s: float | None = None  # of the frame that is decoded and not yet delivered
        self._t_zero: float | None = None  # the monotonic time at which PTS 0 is due
        self._t_frame: float | None = None
        self._num_frames = 0
        self._num_dropped = 0

    def start(self) -> None:
        """Open the file and decode its first frame. Raises `SourceError` if it is missing or holds no video."""
        clip = open_clip(self._path)
        self._clip, self._clock = clip, FileClock(clip.frame_s)
        self._advance()
        if self._due_pts_s is None:
            clip.close()
            raise SourceError(
                f"{self._path}: this video ({clip.codec}) cannot be decoded here; convert it to H.264 and try again"
            )
        self._state = (SourceState.LIVE, "")

    def read(self, timeout_s: float) -> Frame | None:
        """See `Source.read`. Unpaced, it returns as soon as the next frame is decoded."""
        deadline = time.monotonic() + timeout_s
        with self._decoding:
            if self._due_pts_s is None:
                self._advance()
            due_pts_s = self._due_pts_s
        if due_pts_s is None or not self._wait_until_due(due_pts_s, deadline):
            return None
        with self._decoding:
            return self._take()

    def status(self) -> SourceStatus:
        """See `Source.status`."""
        (state, reason), t_frame, clip = self._state, self._t_frame, self._clip
        return SourceStatus(
            state,
            reason,
            num_frames=self._num_frames,
            num_dropped=self._num_dropped,
            frame_age_s=None if t_frame is None else time.monotonic() - t_frame,
            num_total=None if clip is None or self._loop else clip.num_expected or None,
        )

    def stop(self) -> None:
        """See `Source.stop`."""
        self._end("stopped")
        self._stop.set()
        if self._decoding.acquire(timeout=STOP_WAIT_S):
            if self._clip is not None:
                self._clip.close()
            self._decoding.release()

    def _advance(self) -> None:
        """Decode the next frame, starting over at the end when looping; without one the source has ended."""
        self._due_pts_s = None
        if self._clip is None or self._stop.is_set() or self._state[0] is SourceState.ENDED:
            return
        raw_s = self._clip.grab()
        if raw_s is None and self._loop and self._clip.num_frames:
            raw_s = self._start_over(self._clip)
        if raw_s is None:
            self._end(self._clip.trouble)
            return
        self._num_frames += 1
        self._due_pts_s = self._clock.tick(raw_s)

    def _start_over(self, clip: Clip) -> float | None:
        """Open the file again (seeking back is not exact in every container) and decode its first frame."""
        clip.close()
        self._clock.rewind()
        try:
            self._clip = open_clip(self._path)
        except SourceError as error:
            clip.trouble = redact(str(error))
            return None
        return self._clip.grab()

    def _wait_until_due(self, pts_s: float, deadline: float) -> bool:
        """Sleep until the frame at `pts_s` is due; False if that is after `deadline` or the source stopped."""
        if not self._realtime:
            return not self._stop.is_set()
        now = time.monotonic()
        if self._t_zero is None:
            self._t_zero = now - pts_s
        due = self._t_zero + pts_s
        return not self._stop.wait(max(0.0, min(due, deadline) - now)) and due <= deadline

    def _take(self) -> Frame | None:
        """The frame to show now: the decoded one or, if the reader is late, the last one that is due."""
        catch_up_until = time.monotonic() + MAX_CATCH_UP_S
        while self._clip is not None and self._due_pts_s is not None and not self._stop.is_set():
            seq, pts_s, image = self._num_frames - 1, self._due_pts_s, self._clip.picture()
            t_mono, t_wall = time.monotonic(), time.time()
            self._due_pts_s = None
            if image is not None and not self._is_overtaken(pts_s, t_mono, catch_up_until):
                self._t_frame = t_mono
                return Frame(self.camera_id, seq, t_mono, t_wall, pts_s, freeze(image))
            self._num_dropped += 1
            if self._due_pts_s is None:
                self._advance()
        return None

    def _is_overtaken(self, pts_s: float, now: float, catch_up_until: float) -> bool:
        """Whether the frame after the one at `pts_s` is due already; decodes that one to tell, but only when late."""
        if self._t_zero is None or self._clip is None or now - (self._t_zero + pts_s) <= self._clip.frame_s:
            return False
        if now > catch_up_until:
            self._t_zero = now - pts_s
            return False
        self._advance()
        return self._due_pts_s is not None and self._t_zero + self._due_pts_s <= now

    def _end(self, reason: str) -> None:
        if self._state[0] is not SourceState.ENDED:
            self._state = (SourceState.ENDED, reason)

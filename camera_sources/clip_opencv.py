"""One pass over a video file through OpenCV. Knows what containers and OpenCV get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from camera_sources.base import SourceError
from camera_sources.cv import import_cv2

MAX_BAD_READS = 50  # in a row; OpenCV itself has tried several thousand packets in each of them
# Containers count frames that decoders merge or drop, some of them twice as many as there are: only a file that ends
# early by count and by time breaks off.
END_SLACK_FRAMES = 3
END_SLACK_S = 0.5


class OpenCvClip:
    """A `Clip`. Rotation metadata is applied by OpenCV itself."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises `SourceError` if that is not a readable video."""
        self._cv2 = import_cv2()
        self._path = path
        self._capture: Any = self._cv2.VideoCapture(str(path), self._cv2.CAP_FFMPEG)
        if not self._capture.isOpened():
            raise SourceError(f"{path}: not a video that can be read, or cut short; give a whole MP4, MKV, MOV or AVI")
        self._capture.set(self._cv2.CAP_PROP_ORIENTATION_AUTO, 1)
        fps = self._capture.get(self._cv2.CAP_PROP_FPS)
        self.frame_s = 1.0 / fps if 1.0 <= fps <= 1000.0 else 1.0 / 25
        self.codec = _letters(int(self._capture.get(self._cv2.CAP_PROP_FOURCC)))
        self.num_frames = 0
        self.trouble = ""
        self._last_s = 0.0
        self.num_expected = max(0, int(self._capture.get(self._cv2.CAP_PROP_FRAME_COUNT)))

    def grab(self) -> float | None:
        """See `Clip.grab`. A read that fails before the end is damage, not the end: it is tried again."""
        for _ in range(MAX_BAD_READS):
            if self._capture.grab():
                self.num_frames += 1
                # Read after the grab: before it, this is still the previous frame's time.
                raw_s = self._capture.get(self._cv2.CAP_PROP_POS_MSEC) / 1000.0
                self._last_s = max(self._last_s, raw_s)
                return raw_s
            if self.num_frames >= self.num_expected - END_SLACK_FRAMES:
                return None
        if self._last_s < self.num_expected * self.frame_s - END_SLACK_S:
            self.trouble = f"{self._path.name} breaks off after {self.num_frames} of {self.num_expected} frames"
        return None

    def picture(self) -> NDArray[np.uint8] | None:
        """See `Clip.picture`."""
        ok, image = self._capture.retrieve()
        return image if ok and image is not None and image.ndim == 3 else None

    def close(self) -> None:
        """See `Clip.close`."""
        self._capture.release()


def _letters(fourcc: int) -> str:
    text = "".join(chr(fourcc >> shift & 0xFF) for shift in (0, 8, 16, 24))
    return text.strip("\0 ").lower() if text.isascii() and text.strip("\0 ").isprintable() else "unknown codec"

"""One pass over a video file through PyAV, for codecs that OpenCV cannot decode (AV1)."""

from __future__ import annotations

from collections.abc import Generator
from math import nan
from pathlib import Path

import av
import av.error
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from camera_sources.base import SourceError


class AvClip:
    """A `Clip`. Damaged packets are skipped; rotation metadata is applied here."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises `SourceError` if that is not a readable video."""
        try:
            self._container = av.open(str(path))
            self._stream = self._container.streams.video[0]
        except (av.error.FFmpegError, IndexError):
            raise SourceError(f"{path}: not a video that can be read; give a video file such as MP4 or MKV") from None
        self._stream.thread_type = "AUTO"
        self.frame_s = 1.0 / float(self._stream.average_rate or 25)
        self.codec = self._stream.codec_context.name
        self.num_frames = 0
        self.num_expected = self._stream.frames
        self.trouble = ""
        self._path = path
        self._frames = self._decode()
        self._frame: VideoFrame | None = None

    def grab(self) -> float | None:
        """See `Clip.grab`."""
        self._frame = next(self._frames, None)
        if self._frame is None:
            return None
        self.num_frames += 1
        return nan if self._frame.time is None else self._frame.time

    def picture(self) -> NDArray[np.uint8] | None:
        """See `Clip.picture`."""
        if self._frame is None:
            return None
        image = self._frame.to_ndarray(format="bgr24").astype(np.uint8, copy=False)
        return np.ascontiguousarray(np.rot90(image, self._frame.rotation // 90))

    def close(self) -> None:
        """See `Clip.close`."""
        self._frames.close()
        self._container.close()

    def _decode(self) -> Generator[VideoFrame, None, None]:
        try:
            for packet in self._container.demux(self._stream):
                try:
                    yield from packet.decode()
                except av.error.InvalidDataError:
                    continue
        except av.error.FFmpegError as error:
            self.trouble = f"{self._path.name} breaks off after {self.num_frames} frames: {error.strerror}"

"""One pass over a video file: raw pictures and raw times, whoever decodes. Knows which decoder can do what."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from camera_sources.base import SourceError
from camera_sources.clip_opencv import OpenCvClip
from camera_sources.names import require_text

OPENCV_CANNOT = frozenset({"av01"})  # its wheels carry no software decoder for AV1


class Clip(Protocol):
    """An open file. Rotation metadata is applied by the decoder, nowhere else. Not thread-safe.

    `frame_s` is the nominal length of a frame, `codec` its name, `num_frames` how many were decoded so far of the
    `num_expected` that the container announces (0: it does not), `trouble` what went wrong (empty: nothing).
    """

    frame_s: float
    codec: str
    num_frames: int
    num_expected: int
    trouble: str

    def grab(self) -> float | None:
        """Decode the next frame; its time in seconds as the container says (NaN if it does not), None at the end."""
        ...

    def picture(self) -> NDArray[np.uint8] | None:
        """The frame last grabbed, upright, as BGR [height, width, 3]; None if it cannot be converted."""
        ...

    def close(self) -> None:
        """Free the decoder."""
        ...


def open_clip(path: Path) -> Clip:
    """The clip at `path`; raises `SourceError` if that is not a readable video."""
    require_file(path)
    clip = OpenCvClip(path)
    if clip.codec not in OPENCV_CANNOT:
        return clip
    clip.close()
    from camera_sources.clip_av import AvClip  # PyAV is loaded for those who need it

    return AvClip(path)


def require_file(path: Path) -> None:
    """Raise `SourceError` unless `path` is a file that may be read, of a name that OpenCV survives."""
    require_text(str(path))
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise SourceError(f"{path}: the file is empty")
    except OSError as error:
        raise SourceError(f"{path}: {(error.strerror or 'cannot be read').lower()}; check the path") from None

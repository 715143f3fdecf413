"""Clips made on the spot, whose every frame says which one it is."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray


def write_clip(path: Path, num_frames: int, fps: float = 25.0, size: tuple[int, int] = (128, 64)) -> Path:
    """A clip of `num_frames`; frame i is gray 40 + 2 i all over, which survives any codec to within a few levels."""
    fourcc = cv2.VideoWriter.fourcc(*("MJPG" if path.suffix == ".avi" else "mp4v"))
    writer = cv2.VideoWriter(str(path), fourcc, fps, size)
    assert writer.isOpened()
    for index in range(num_frames):
        writer.write(np.full((size[1], size[0], 3), gray_of(index), np.uint8))
    writer.release()
    return path


def gray_of(index: int) -> int:
    """The gray of frame `index`."""
    return 40 + 2 * index % 200


def index_of(image: NDArray[np.uint8]) -> int:
    """Which frame (of the first hundred) `image` is."""
    return round((float(image.mean()) - 40) / 2)

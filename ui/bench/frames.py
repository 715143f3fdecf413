"""Camera frames out of one photograph: random crops, no two of them equal, as JPEG data URIs.

Equal frames would be answered from a server's caches and measure nothing. The crops follow from the seed alone, and
`salt` marks the pixels, so that another bench with the same seed repeats the load but no frame.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from importlib.util import find_spec
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

from ui.errors import UsageError

QUALITY = 90
MARK_SIDE = 16
"""Pixels of the coloured square that makes a frame unlike any other: whole JPEG blocks, so that it survives."""
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


def parse_size(text: str) -> tuple[int, int]:
    """`512x512` as width and height in pixels; raises `UsageError`."""
    match = _SIZE.fullmatch(text.strip().lower())
    width, height = (int(side) for side in match.groups()) if match else (0, 0)
    if min(width, height) < MARK_SIDE:
        raise UsageError(f"--size {text}: it takes width x height in pixels, at least {MARK_SIDE} each, like 512x512")
    return width, height


def check_image(image: Path) -> Path:
    """`image`, if frames can be cropped from it; raises `UsageError`."""
    _open(image)
    return image


def default_image() -> Path:
    """The photograph that ultralytics brings along: a street with people and a bus."""
    found = find_spec("ultralytics")
    if found is None or found.origin is None:
        raise UsageError("ultralytics is not installed, and with it the default picture: name one with --image")
    return Path(found.origin).parent / "assets" / "bus.jpg"


class FrameSource:
    """Gives frames of `size` (width, height). Safe to use from one thread at a time."""

    def __init__(self, image: Path, size: tuple[int, int], *, seed: str, salt: str) -> None:
        self._photo = _open(image)
        self._size = size
        self._crops = Random(f"frames/{seed}")
        self._mark = f"{salt}/{seed}"
        self._num_given = 0

    def next(self) -> str:
        """The next frame, a JPEG as a data URI; unlike all before it."""
        mark = hashlib.sha256(f"{self._mark}/{self._num_given}".encode()).digest()
        self._num_given += 1
        frame = self._photo.resize(self._size, Image.Resampling.BILINEAR, box=self._crop())
        _paint(frame, mark)
        jpeg = io.BytesIO()
        frame.save(jpeg, "JPEG", quality=QUALITY)
        return f"data:image/jpeg;base64,{base64.b64encode(jpeg.getvalue()).decode()}"

    def _crop(self) -> tuple[int, int, int, int]:
        """A box of three quarters to nearly all of the photograph, anywhere in it."""
        width, height = self._photo.size
        share = self._crops.uniform(0.75, 0.98)
        w, h = max(1, int(width * share)), max(1, int(height * share))
        left, top = self._crops.randint(0, width - w), self._crops.randint(0, height - h)
        return left, top, left + w, top + h


def _paint(frame: Image.Image, mark: bytes) -> None:
    """Four 8 x 8 squares in the top left corner, coloured by `mark`."""
    draw, side = ImageDraw.Draw(frame), MARK_SIDE // 2
    for i in range(4):
        x, y = side * (i % 2), side * (i // 2)
        draw.rectangle((x, y, x + side - 1, y + side - 1), fill=(mark[3 * i], mark[3 * i + 1], mark[3 * i + 2]))


def _open(image: Path) -> Image.Image:
    try:
        with Image.open(image.expanduser()) as photo:
            return photo.convert("RGB")
    except OSError as error:
        reason = (error.strerror or "this is no picture that can be read").lower()
        raise UsageError(f"--image {image}: {reason}") from None

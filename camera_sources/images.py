"""A folder of images as a source, in natural order. Knows which are skipped and why; each one is shown once."""

from __future__ import annotations

import re
import threading
import time
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from camera_sources.base import SourceError, SourceState, SourceStatus
from camera_sources.frame import Frame, freeze
from camera_sources.names import printable

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
MAX_PIXELS = 64_000_000


class ImagesSource:
    """The images of a folder (not of its subfolders), or one image file, as frames `1 / fps` seconds apart.

    `realtime` paces them at `fps`; a slow reader delays the rest and misses nothing. `num_frames` counts delivered
    images, `num_dropped` unreadable ones; the last of those is named in the status, also after the end.
    """

    is_live = False

    def __init__(
        self, path: str | Path, *, camera_id: str, loop: bool = False, realtime: bool = True, fps: float = 1.0
    ) -> None:
        self.camera_id = camera_id
        self._path = Path(path)
        self._loop = loop
        self._realtime = realtime
        self._frame_s = 1.0 / fps
        self._stop = threading.Event()
        self._state = SourceState.CONNECTING
        self._trouble = ""
        self._files: list[Path] = []
        self._next = 0
        self._num_read = 0  # in this round; a round without a readable image is the last
        self._num_frames = 0
        self._num_dropped = 0
        self._t_due = 0.0
        self._t_frame: float | None = None

    def start(self) -> None:
        """List the images. Raises `SourceError` if there are none."""
        self._files = list_images(self._path)
        if not self._files:
            kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
            raise SourceError(f"{self._path}: no images in this folder; put some there ({kinds})")
        self._state = SourceState.LIVE

    def read(self, timeout_s: float) -> Frame | None:
        """See `Source.read`."""
        deadline = time.monotonic() + timeout_s
        while self._state is SourceState.LIVE:
            if self._next == len(self._files) and not self._rewind():
                self._state = SourceState.ENDED
            elif not self._wait_until_due(deadline):
                break
            elif (frame := self._load(self._files[self._next])) is not None:
                return frame
        return None

    def status(self) -> SourceStatus:
        """See `Source.status`."""
        t_frame = self._t_frame
        return SourceStatus(
            self._state,
            self._trouble,
            num_frames=self._num_frames,
            num_dropped=self._num_dropped,
            frame_age_s=None if t_frame is None else time.monotonic() - t_frame,
            num_total=None if self._loop else len(self._files) - self._num_dropped,
        )

    def stop(self) -> None:
        """See `Source.stop`."""
        self._stop.set()
        if self._state is not SourceState.ENDED:
            self._state, self._trouble = SourceState.ENDED, "stopped"

    def _rewind(self) -> bool:
        """Start over, if looping and if the round that ended had any readable image."""
        if not self._loop or self._num_read == 0:
            return False
        self._next = self._num_read = 0
        return True

    def _wait_until_due(self, deadline: float) -> bool:
        if not self._realtime:
            return not self._stop.is_set()
        wait_s = min(self._t_due, deadline) - time.monotonic()
        return not self._stop.wait(max(0.0, wait_s)) and self._t_due <= deadline

    def _load(self, path: Path) -> Frame | None:
        """The next image as a frame; None, counted and named in the status, if it cannot be read."""
        self._next += 1
        try:
            image = load_image(path)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            self._num_dropped += 1
            self._trouble = f"skipped {self._num_dropped} unreadable, last {printable(path.name)}: {_one_line(error)}"
            return None
        self._t_frame, seq = time.monotonic(), self._num_frames
        self._t_due = self._t_frame + self._frame_s
        self._num_read += 1
        self._num_frames += 1
        return Frame(self.camera_id, seq, self._t_frame, time.time(), seq * self._frame_s, freeze(image))


def list_images(path: Path) -> list[Path]:
    """The images in folder `path` in natural order (frame2 before frame10); `path` itself if it is a file."""
    if path.is_file():
        return [path]
    try:
        entries = list(path.iterdir())
    except OSError as error:
        raise SourceError(f"{path}: {(error.strerror or 'cannot be read').lower()}; check the path") from None
    images = [entry for entry in entries if is_image(entry) and not entry.name.startswith(".")]
    return sorted(images, key=_natural)


def is_image(path: Path) -> bool:
    """Whether the name of `path` is that of an image; says nothing of its content."""
    return path.suffix.lower() in SUFFIXES


def load_image(path: Path) -> NDArray[np.uint8]:
    """`path` as BGR uint8 [height, width, 3]: upright (EXIF), transparency on white, 16 bit scaled to 8, first frame.

    Raises OSError or ValueError for what is damaged, cut short or larger than `MAX_PIXELS` (told from its header).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path) as opened:  # reads the header alone
            if opened.width * opened.height > MAX_PIXELS:
                raise ValueError(f"{opened.width}x{opened.height} pixels are more than {MAX_PIXELS}")
            opened.load()
            upright = ImageOps.exif_transpose(opened)
    rgb = np.asarray(_to_rgb(upright))
    return np.ascontiguousarray(rgb[:, :, ::-1])


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        gray = np.asarray(image, dtype=np.float64)
        scale = 255.0 / 65535.0 if image.mode.startswith("I;16") or gray.max(initial=0.0) > 255 else 1.0
        return Image.fromarray(np.clip(gray * scale, 0, 255).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB")


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", path.name.lower())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _one_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

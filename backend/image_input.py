"""The image contract: from a data URI to an RGB image, or a refusal that names the part. Nothing is dropped or guessed.

JPEG, PNG, WebP, BMP and the first frame of a GIF; EXIF orientation applied, alpha composited on white, 16 bits scaled
to 8. The pixel bound is checked from the header, before anything is decoded, and what is far larger than its reader can
use is reduced while it is decoded. Payloads never appear in a message. Knows nothing of models: what an image becomes
next is the adapter's business.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from backend.errors import Rejected

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
REDUCING_GAP = 3
"""An image is reduced to no less than so many times the side its reader uses: what the reader then scales it to differs
from scaling the whole by less than a JPEG's own noise (Pillow calls 3 indistinguishable)."""

_STRIP_ROWS = 64
"""Rows of a reduced image that are made at a time."""

_DATA_URI = re.compile(r"data:(?P<type>[^,;]*)(?P<params>(?:;[^,;]*)*),", re.IGNORECASE)
_BLANKS = re.compile(rb"[\s]+")


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image whose header has been read and found good; its pixels are still encoded in `payload`."""

    payload: bytes = field(repr=False)
    param: str
    num_pixels: int

    def decode(self, max_side: int = 0) -> Image.Image:
        """The image as 8-bit RGB; reduced by a whole factor where its shorter side is far beyond `max_side` (0: never).

        CPU-bound. Raises Rejected with `param` for an image that is damaged.
        """
        with _refusals(self.param):
            image = _open(self.payload)
            factor = max(1, min(image.size) // (REDUCING_GAP * max_side)) if max_side else 1
            rgb = _reduced(image, factor) if factor > 1 else _to_rgb(image)
            rgb.info = image.info
            ImageOps.exif_transpose(rgb, in_place=True)
            return rgb


def open_image(uri: str, *, param: str, max_pixels: int) -> EncodedImage:
    """The image of a data URI, its header read; `param` is its path in the request. CPU-bound: not for the event loop.

    Raises Rejected with `param` for anything the contract does not cover, except damage behind the header.
    """
    return open_payload(_payload(uri, param), param=param, max_pixels=max_pixels)


def open_payload(payload: bytes, *, param: str, max_pixels: int) -> EncodedImage:
    """The same for an image's bytes as they are in its file."""
    try:
        with _refusals(param):
            image = _open(payload)
    except Image.DecompressionBombError:
        raise _refuse(param, f"has more than the {max_pixels} pixels allowed") from None
    _check_size(image, param, max_pixels)
    return EncodedImage(payload, param, image.width * image.height)


def _open(payload: bytes) -> Image.Image:
    with warnings.catch_warnings():
        # Pillow's own bound; ours is checked from the same header.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(payload), formats=FORMATS)


@contextmanager
def _refusals(param: str) -> Iterator[None]:
    """Pillow's objections as refusals."""
    try:
        yield
    except UnidentifiedImageError:
        raise _refuse(param, "is not a readable JPEG, PNG, WebP, BMP or GIF image") from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise _refuse(param, "is damaged or cut short") from None


def _payload(uri: str, param: str) -> bytes:
    """The bytes a data URI carries. Tolerates blanks, missing padding, the URL-safe alphabet and percent-encoding."""
    if uri[:5].lower() != "data:":
        if uri[:5].lower() in ("http:", "https"):
            raise _refuse(
                param, "is a web address, and fetching is off: send the image as a data: URI (--allowed-media-domains)"
            )
        raise _refuse(param, "must be a data: URI (data:image/jpeg;base64,…)")
    head = _DATA_URI.match(uri)
    if head is None:
        raise _refuse(param, "is a data: URI without a comma before its data")
    if head["type"] and not head["type"].strip().lower().startswith(("image/", "application/octet-stream")):
        raise _refuse(param, "is a data: URI of another type than image/…")
    if "base64" not in head["params"].lower().split(";"):
        raise _refuse(param, "must be base64 (data:image/jpeg;base64,…)")
    text = _BLANKS.sub(b"", unquote_to_bytes(uri[head.end() :])).translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    try:
        payload = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _refuse(param, "is not valid base64") from None
    if not payload:
        raise _refuse(param, "is empty")
    return payload


def _check_size(image: Image.Image, param: str, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise _refuse(param, "has no pixels")
    if width * height > max_pixels:
        raise _refuse(param, f"is {width}x{height}, more than the {max_pixels} pixels allowed: send it smaller")


def _reduced(image: Image.Image, factor: int) -> Image.Image:
    """RGB, each side divided by about `factor`, every pixel the mean of those it covers.

    Strip by strip, so that nothing else is ever as large as `image` itself. A strip's edges may fall inside a row.
    """
    full_width, full_height = image.size
    width, height = round(full_width / factor), round(full_height / factor)
    # A JPEG decodes into a half, a quarter or an eighth at once, rounded up: the last row and column are partly empty.
    image.draft(None, (width, height))
    image.load()
    scale = round(full_width / image.width)
    reduced = Image.new("RGB", (width, height))
    for top in range(0, height, _STRIP_ROWS):
        bottom = min(height, top + _STRIP_ROWS)
        first, last = (row * full_height / scale / height for row in (top, bottom))
        strip = _to_rgb(image.crop((0, int(first), image.width, math.ceil(last))))
        box = (0, first - int(first), min(strip.width, full_width / scale), min(strip.height, last - int(first)))
        reduced.paste(strip.resize((width, bottom - top), Image.Resampling.BOX, box), (0, top))
    return reduced


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        image = _to_8_bit(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, layer)
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits by scale: Pillow's own conversion would clip everything above 255 to white."""
    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values.clip(0, 65535) / 257).round().astype(np.uint8))


def _refuse(param: str, why: str) -> Rejected:
    return Rejected(f"{param} {why}", param=param, code="invalid_image")

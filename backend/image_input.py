"""The image contract: from a data URI to an RGB image, or a refusal that names the part. Nothing is dropped or guessed.

JPEG, PNG, WebP, BMP and the first frame of a GIF; EXIF orientation applied, alpha composited on white, 16 bits scaled
to 8. The pixel bound is checked from the header, before anything is decoded. Payloads never appear in a message.
Knows nothing of models: what an image becomes next is the adapter's business.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import warnings
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from backend.errors import Rejected

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_DATA_URI = re.compile(r"data:(?P<type>[^,;]*)(?P<params>(?:;[^,;]*)*),", re.IGNORECASE)
_BLANKS = re.compile(rb"[\s]+")


def decode_image(uri: str, *, param: str, max_pixels: int) -> Image.Image:
    """The image of a data URI as 8-bit RGB; `param` is its path in the request. CPU-bound: not for the event loop.

    Raises Rejected with `param` for anything the contract does not cover.
    """
    payload = _payload(uri, param)
    try:
        with warnings.catch_warnings():
            # Pillow's own bound; ours is checked right after, from the same header.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(payload), formats=FORMATS)
        _check_size(image, param, max_pixels)
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise _refuse(param, "is not a readable JPEG, PNG, WebP, BMP or GIF image") from None
    except Image.DecompressionBombError:
        raise _refuse(param, f"has more than the {max_pixels} pixels allowed") from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise _refuse(param, "is damaged or cut short") from None


def _payload(uri: str, param: str) -> bytes:
    """The bytes a data URI carries. Tolerates blanks, missing padding, the URL-safe alphabet and percent-encoding."""
    if uri[:5].lower() != "data:":
        if uri[:5].lower() in ("http:", "https"):
            raise _refuse(param, "is a web address, and fetching is off: send the image as a data: URI")
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


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        image = _to_8_bit(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, layer)
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits by scale: Pillow's own conversion would clip everything above 255 to white."""
    values = np.asarray(image).astype(np.float64)
    return Image.fromarray((values.clip(0, 65535) / 257).round().astype(np.uint8))


def _refuse(param: str, why: str) -> Rejected:
    return Rejected(f"{param} {why}", param=param, code="invalid_image")

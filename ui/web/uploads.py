"""Pictures that people add to a chat: checked, made upright and small, kept for a while in bounded memory."""

from __future__ import annotations

import asyncio
import io
import secrets
import warnings
from collections import OrderedDict

from fastapi import APIRouter, HTTPException, Request, Response
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_BYTES = 16 * 2**20
MAX_PIXELS = 50_000_000
LONG_SIDE = 1280
KEPT = 32
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")


class PictureError(ValueError):
    """What was sent is no picture that can be used. One line for the person who sent it."""


class Uploads:
    """The latest `KEPT` pictures by random id. Single-threaded."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, jpeg: bytes) -> str:
        """Keep a picture; returns its id."""
        picture_id = secrets.token_urlsafe(16)
        self._kept[picture_id] = jpeg
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return picture_id

    def get(self, picture_id: str) -> bytes | None:
        """The picture, as long as it is kept."""
        return self._kept.get(picture_id)


def to_jpeg(data: bytes) -> bytes:
    """`data` as an upright JPEG of at most `LONG_SIDE`, transparency on white. Raises `PictureError`."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height}"
                raise PictureError(f"This picture has {size} pixels; {MAX_PIXELS // 10**6} million are the most.")
            image.draft("RGB", (LONG_SIDE, LONG_SIDE))
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):
                upright = upright.point(lambda value: value / 256).convert("L")
            upright.thumbnail((LONG_SIDE, LONG_SIDE))
            rgba = upright.convert("RGBA")
            flat = Image.new("RGB", rgba.size, "white")
            flat.paste(rgba, mask=rgba.getchannel("A"))
            out = io.BytesIO()
            flat.save(out, "JPEG", quality=90)
            return out.getvalue()
    except PictureError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise PictureError("This file is no picture that can be read: JPEG, PNG, WebP, BMP or GIF.") from None
    except (OSError, ValueError, SyntaxError, EOFError):
        raise PictureError("This picture is damaged or incomplete.") from None


def build_uploads(uploads: Uploads) -> APIRouter:
    """`POST /live/chat/pictures` (the body is the file) and `GET /live/chat/pictures/ID.jpg`."""
    router = APIRouter()

    @router.post("/live/chat/pictures")
    async def add(request: Request) -> dict[str, str]:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BYTES:
                raise HTTPException(413, f"This file has more than {MAX_BYTES // 2**20} MB.")
        try:
            return {"id": uploads.keep(await asyncio.to_thread(to_jpeg, bytes(data)))}
        except PictureError as error:
            raise HTTPException(400, str(error)) from None

    @router.get("/live/chat/pictures/{picture_id}.jpg")
    async def picture(picture_id: str) -> Response:
        jpeg = uploads.get(picture_id)
        if jpeg is None:
            raise HTTPException(404, "this picture is not kept any more")
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, no-store"})

    return router

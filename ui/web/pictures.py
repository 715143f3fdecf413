"""Small pictures for the captions: made once per event, kept in bounded memory. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import io
from collections import OrderedDict

from PIL import Image

THUMBNAIL_PX = (320, 320)
MAX_THUMBNAILS = 200


class Thumbnails:
    """Thumbnails by event id. Single-threaded; the shrinking itself happens in a worker thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    async def get(self, event_id: str, jpeg: bytes) -> bytes:
        """The event's picture as a JPEG of at most `THUMBNAIL_PX`."""
        if event_id not in self._kept:
            self._kept[event_id] = await asyncio.to_thread(shrink, jpeg)
            while len(self._kept) > MAX_THUMBNAILS:
                self._kept.popitem(last=False)
        return self._kept[event_id]


def shrink(jpeg: bytes) -> bytes:
    """`jpeg` made to fit into `THUMBNAIL_PX`."""
    with Image.open(io.BytesIO(jpeg)) as image:
        image.draft("RGB", THUMBNAIL_PX)
        image.thumbnail(THUMBNAIL_PX)
        small = io.BytesIO()
        image.save(small, "JPEG", quality=80)
    return small.getvalue()

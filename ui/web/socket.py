"""One WebSocket per open page: every camera's pictures, their states and zones, and the captions as they grow.

A page is told what is new when it can take it, never what it missed: states and captions are compared with what it
has, and a camera's next picture goes out when the page has shown the last one. So nothing is queued for a slow page.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from camera_sources.base import SourceState
from pipeline.config import Zone
from pipeline.feed import FrameSeen
from ui.web.board import Board, CameraView
from ui.web.captions import shown, summary

TICK_S = 0.05
PICTURE_S = 0.2
"""A camera's pictures are at least this far apart."""
STATES_S = 0.5
FORGET_S = 10.0
"""A picture whose receipt did not come for so long no longer holds the next one back."""
MAX_PAGES = 64
TOO_MANY = 1013


class Link:
    """What one page has been told. `next_messages` is all that is new to it; nothing else is kept."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._revision = -1
        self._versions: dict[str, int] = {}
        self._trouble = ""
        self._zones: dict[str, tuple[Zone, ...]] = {}
        self._t_states = 0.0
        self._pictures: dict[str, tuple[int, float]] = {}
        self._on_the_way: dict[str, float] = {}

    def received(self, camera_id: str) -> None:
        """The page has shown the camera's last picture."""
        self._on_the_way.pop(camera_id, None)

    def next_messages(self, now: float) -> list[str | bytes]:
        """News for the page at `now` (monotonic seconds): text first, then at most one picture per camera."""
        messages: list[str | bytes] = []
        if news := self._cards():
            messages.append(json.dumps(news))
        if now - self._t_states >= STATES_S:
            self._t_states = now
            cameras = [camera_state(view) for view in self._board.cameras.values()]
            messages.append(json.dumps({"kind": "cameras", "cameras": cameras}))
            if zones := self._new_zones():
                messages.append(json.dumps({"kind": "zones", "zones": zones}))
        for view in self._board.cameras.values():
            if seen := self._picture(view, now):
                messages.append(pack_picture(seen, view))
        return messages

    def _cards(self) -> dict[str, Any] | None:
        if self._revision == self._board.revision:
            return None
        is_first, self._revision = self._revision < 0, self._board.revision
        cards = self._board.cards()
        new = [card for card in cards if self._versions.get(card.event_id) != card.version]
        trouble = self._board.store_trouble
        if not new and not is_first and trouble == self._trouble:
            return None
        self._trouble = trouble
        self._versions = {card.event_id: card.version for card in cards}
        return {"kind": "cards", "cards": [shown(card) for card in new], "summary": summary(cards), "trouble": trouble}

    def _new_zones(self) -> dict[str, Any]:
        """The zones of each camera whose zones the page does not have."""
        before, cameras = self._zones, self._board.cameras
        self._zones = {camera_id: view.zones for camera_id, view in cameras.items()}
        changed = (view for view in cameras.values() if view.zones != before.get(view.camera_id, ()))
        return {view.camera_id: [_told(zone) for zone in view.zones] for view in changed}

    def _picture(self, view: CameraView, now: float) -> FrameSeen | None:
        seen = view.frame(None)
        seq, t_sent = self._pictures.get(view.camera_id, (-1, -PICTURE_S))
        if seen is None or seen.frame_seq == seq or now - t_sent < PICTURE_S:
            return None
        if now - self._on_the_way.get(view.camera_id, -FORGET_S) < FORGET_S:
            return None
        self._pictures[view.camera_id] = (seen.frame_seq, now)
        self._on_the_way[view.camera_id] = now
        return seen


def build_socket(board: Board) -> APIRouter:
    """The route `/live/socket`. The page answers each picture with the camera's name."""
    router = APIRouter()
    num_pages = 0

    @router.websocket("/live/socket")
    async def socket(websocket: WebSocket) -> None:
        nonlocal num_pages
        await websocket.accept()
        if num_pages >= MAX_PAGES:
            await websocket.close(TOO_MANY, f"{MAX_PAGES} pages are open already")
            return
        num_pages += 1
        link = Link(board)
        sending = asyncio.create_task(_send(websocket, link))
        try:
            while not sending.done():
                link.received((await websocket.receive_text())[:200])
        except (WebSocketDisconnect, RuntimeError, KeyError):
            pass
        finally:
            num_pages -= 1
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    return router


async def _send(websocket: WebSocket, link: Link) -> None:
    while True:
        for message in link.next_messages(time.monotonic()):
            if isinstance(message, bytes):
                await websocket.send_bytes(message)
            else:
                await websocket.send_text(message)
        await asyncio.sleep(TICK_S)


def pack_picture(seen: FrameSeen, view: CameraView) -> bytes:
    """A picture as one message: the length of its header (2 bytes, big end first), the header as JSON, the JPEG."""
    is_current = view.status.state is SourceState.LIVE
    header = json.dumps(
        {
            "camera": seen.camera_id,
            "seq": seen.frame_seq,
            "width": seen.width,
            "height": seen.height,
            "age_s": round(time.monotonic() - seen.t_captured, 3),
            "tracks": [
                (track.track_id, *(round(edge, 1) for edge in (track.box.x1, track.box.y1, track.box.x2, track.box.y2)))
                for track in (seen.tracks if is_current else ())
            ],
        }
    ).encode()
    return struct.pack(">H", len(header)) + header + seen.jpeg


def _told(zone: Zone) -> dict[str, Any]:
    return {"name": zone.name, "kind": "exclude" if zone.excluded else "include", "polygon": zone.polygon}


def camera_state(view: CameraView) -> dict[str, Any]:
    """One camera beside its picture."""
    seen = view.frame(None)
    return {
        "id": view.camera_id,
        "state": view.status.state,
        "state_s": time.monotonic() - view.t_state,
        "is_live": view.is_live,
        "reason": view.status.reason,
        "detector_fps": view.detector_fps,
        "has_picture": seen is not None,
        "age_s": time.monotonic() - seen.t_captured if seen else None,
        "num_people": len(seen.tracks) if seen else 0,
    }

"""What the page's scripts fetch: pictures, camera and engine readings, and the engine's settings.

Browsers pull, each at its own pace, so nothing is queued for a slow one. Reads the board, the store and the engine
link; changes nothing but the engine's settings.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel

from camera_sources.base import SourceState
from ui.web.board import Board, CameraView
from ui.web.engine_link import RATE_WINDOW_S, EngineLink
from ui.web.pictures import Thumbnails

if TYPE_CHECKING:
    from pipeline.store import EventStore

NEVER_CACHED = {"Cache-Control": "no-store"}
CACHED_FOR_GOOD = {"Cache-Control": "private, max-age=31536000, immutable"}


class SettingsWish(BaseModel):
    """Settings that somebody asks for with the slider and what stands beside it; None leaves one as it is."""

    max_num_batched_tokens: int | None = None
    step_policy: str | None = None
    target_itl_ms: float | None = None


def build_routes(board: Board, store: EventStore | None, engine: EngineLink) -> APIRouter:
    """The page's data routes over these three."""
    router = APIRouter()
    thumbnails = Thumbnails()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/frames/{camera_id}.jpg")
    async def frame(camera_id: str, seq: int | None = None) -> Response:
        view = board.cameras.get(camera_id)
        seen = view.frame(seq) if view else None
        if seen is None:
            raise HTTPException(404, "no picture yet")
        return Response(seen.jpeg, media_type="image/jpeg", headers=NEVER_CACHED)

    @router.get("/events/{event_id}.jpg")
    async def event_picture(event_id: str, full: bool = False) -> Response:
        card = board.card(event_id)
        jpeg = card.jpeg if card else None
        if jpeg is None and store is not None:
            jpeg = await asyncio.to_thread(store.jpeg, event_id)
        if jpeg is None:
            raise HTTPException(404, "no picture of this event")
        picture = jpeg if full else await thumbnails.get(event_id, jpeg)
        return Response(picture, media_type="image/jpeg", headers=CACHED_FOR_GOOD)

    @router.get("/live/cameras")
    async def cameras(response: Response) -> list[dict[str, Any]]:
        response.headers.update(NEVER_CACHED)
        return [_camera(view) for view in board.cameras.values()]

    @router.get("/live/engine")
    async def engine_reading(response: Response, since: int = -1, generation: int = -1) -> dict[str, Any]:
        response.headers.update(NEVER_CACHED)
        return _engine(engine, since if generation == engine.generation else -1)

    @router.patch("/live/settings")
    async def settings(wish: SettingsWish) -> dict[str, str | None]:
        return {"refused": await engine.change(wish.model_dump(exclude_none=True))}

    return router


def _camera(view: CameraView) -> dict[str, Any]:
    seen, is_current = view.frame(None), view.status.state is SourceState.LIVE
    return {
        "id": view.camera_id,
        "state": view.status.state,
        "state_s": time.monotonic() - view.t_state,
        "is_live": view.is_live,
        "reason": view.status.reason,
        "detector_fps": view.detector_fps,
        "seq": seen.frame_seq if seen else None,
        "width": seen.width if seen else None,
        "height": seen.height if seen else None,
        "age_s": time.monotonic() - seen.t_captured if seen else None,
        "tracks": [
            (track.track_id, *(round(edge, 1) for edge in (track.box.x1, track.box.y1, track.box.x2, track.box.y2)))
            for track in (seen.tracks if seen and is_current else ())
        ],
    }


def _engine(engine: EngineLink, since: int) -> dict[str, Any]:
    rates, settings = engine.rates(), engine.settings
    return {
        "state": engine.state,
        "is_own": engine.is_own,
        "generation": engine.generation,
        "marks": [
            {"step_id": mark.step_id, "setting": mark.setting, "before": mark.before, "after": mark.after}
            for mark in engine.marks
        ],
        "steps": [step for step in engine.steps if step["step_id"] > since],
        "settings": settings
        and {
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "max_num_seqs": settings.max_num_seqs,
            "step_policy": settings.step_policy,
            "step_policies": settings.step_policies,
            "target_itl_ms": settings.target_itl_ms,
            "step_token_budget": settings.step_token_budget,
            "max_budget": engine.max_budget,
        },
        "rates": {
            "tokens_per_s": rates.tokens_per_s,
            "itl_p50_ms": rates.itl_p50_ms,
            "itl_p99_ms": rates.itl_p99_ms,
            "window_s": RATE_WINDOW_S,
        },
    }

"""What the page's scripts fetch: the pictures of events, older events, engine readings, and the engine's settings.

Reads the board, the store and the engine link; changes nothing but the engine's settings.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BaseModel

from pipeline.query import EventQuery
from ui.web.board import Board, Card
from ui.web.captions import shown
from ui.web.engine_link import RATE_WINDOW_S, EngineLink
from ui.web.pictures import Thumbnails
from ui.web.shares import ShareMeter, Shares

if TYPE_CHECKING:
    from pipeline.events import Event
    from pipeline.store import EventStore

MAX_PAGE = 40
MAX_ID = 128
MAX_WORDS = 200
NEVER_CACHED = {"Cache-Control": "no-store"}
CACHED_FOR_GOOD = {"Cache-Control": "private, max-age=31536000, immutable", "Vary": "Cookie"}
"""Pictures never change. They are another person's as soon as the cookie is, so a session's end hides them, too."""


class SettingsWish(BaseModel):
    """Settings that somebody asks for with the slider and what stands beside it; None leaves one as it is."""

    max_num_batched_tokens: int | None = None
    step_policy: str | None = None
    target_itl_ms: float | None = None


def build_routes(board: Board, store: EventStore | None, engine: EngineLink, meter: ShareMeter) -> APIRouter:
    """The page's data routes over these."""
    router = APIRouter()
    thumbnails = Thumbnails()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

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

    @router.get("/live/events")
    async def events(
        response: Response,
        before: Annotated[str | None, Query(max_length=MAX_ID)] = None,
        camera: Annotated[str | None, Query(max_length=MAX_ID)] = None,
        words: Annotated[str, Query(max_length=MAX_WORDS)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    ) -> dict[str, Any]:
        response.headers.update(NEVER_CACHED)
        found = await asyncio.to_thread(_find, store, words.strip(), limit, before, camera)
        cards = [board.card(event.event_id) or Card.of(event) for event in found]
        return {"events": [shown(card) for card in cards], "is_last": len(found) < limit}

    @router.get("/live/engine")
    async def engine_reading(response: Response, since: int = -1, generation: int = -1) -> dict[str, Any]:
        response.headers.update(NEVER_CACHED)
        reading = _engine(engine, since if generation == engine.generation else -1)
        return reading | {"latencies": _latencies(board), "shares": _shares(meter.latest)}

    @router.patch("/live/settings")
    async def settings(wish: SettingsWish) -> dict[str, str | None]:
        return {"refused": await engine.change(wish.model_dump(exclude_none=True))}

    return router


def _find(store: EventStore | None, words: str, limit: int, before: str | None, camera: str | None) -> list[Event]:
    return [] if store is None else store.find(EventQuery(words=words or None, camera=camera), limit, before)


def _latencies(board: Board) -> dict[str, Any]:
    ages = [view.age_s() for view in board.cameras.values()]
    spreads = {name: (spread.p50_s, spread.p99_s) for name, spread in board.latencies.spreads().items()}
    return spreads | {"picture_age": max((age for age in ages if age is not None), default=None)}


def _shares(shares: Shares) -> dict[str, Any]:
    return {
        "cores": shares.cores,
        "num_cores": shares.num_cores,
        "gpus": [(gpu.busy, gpu.used_mib, gpu.total_mib) for gpu in shares.gpus],
    }


def _engine(engine: EngineLink, since: int) -> dict[str, Any]:
    rates, settings = engine.rates(), engine.settings
    return {
        "state": engine.state,
        "is_own": engine.is_own,
        "loading": engine.loading and asdict(engine.loading),
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

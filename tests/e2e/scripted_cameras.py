"""The camera API over a board alone: what the page's dialog needs of it, with its refusals."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from camera_sources.base import SourceState, SourceStatus
from pipeline.feed import CameraChanged, CameraRemoved
from ui.web.board import Board


def scripted_cameras(board: Board) -> APIRouter:
    """`/api/cameras`; a source must be an RTSP URL."""
    router = APIRouter(prefix="/api/cameras")
    kept: dict[str, dict[str, Any]] = {name: {"name": name, "source": f"rtsp://{name}/live"} for name in board.cameras}

    @router.get("")
    async def cameras() -> dict[str, Any]:
        return {"cameras": [camera | {"is_saved": False, "status": None} for camera in kept.values()]}

    @router.post("")
    async def add(request: Request) -> Response:
        return put(await request.json(), 201)

    @router.put("/{name}")
    async def replace(name: str, request: Request) -> Response:
        values = await request.json()
        kept.pop(name)
        return put(values, 200)

    @router.delete("/{name}")
    async def remove(name: str) -> Response:
        kept.pop(name)
        board.take(CameraRemoved(name))
        return Response(status_code=204)

    def put(values: dict[str, Any], status: int) -> Response:
        if not values.get("source", "").startswith("rtsp://"):
            fault = {"field": "source", "message": "no such file"}
            return JSONResponse({"error": {"message": "source: no such file", "faults": [fault]}}, 400)
        kept[values["name"]] = values
        board.take(CameraChanged(values["name"], SourceStatus(SourceState.CONNECTING), 0.0))
        return JSONResponse(values, status)

    return router

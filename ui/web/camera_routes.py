"""The HTTP API for cameras: list, add, change and remove them while the others run. JSON in, JSON out.

Who may call it is decided around it. A body must be called JSON: a form on another site cannot send that unasked.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from pipeline.roster import NameTaken, NotSaved, Roster, UnknownCamera, public
from pipeline.settings.fault import Fault, SettingsError
from pipeline.settings.models import CameraSettings
from pipeline.status import PipelineReading
from ui.errors import say

LARGEST_BODY = 65_536

Handler = Callable[[], Awaitable[Response]]


class _BadBody(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def build_camera_routes(roster: Roster, reading: Callable[[], PipelineReading]) -> APIRouter:
    """`/api/cameras` over `roster`; `reading` tells how the cameras are."""
    router = APIRouter(prefix="/api/cameras")

    def told(camera: CameraSettings) -> dict[str, Any]:
        found = next((one for one in reading().cameras if one.camera_id == camera.name), None)
        status = found and asdict(found.source) | {"detector_fps": found.detector_fps}
        return public(camera) | {"status": status, "is_saved": roster.is_saved}

    @router.get("")
    async def list_cameras() -> Response:
        return JSONResponse({"cameras": [told(camera) for camera in roster.cameras]}, headers=NEVER_CACHED)

    @router.get("/{name}")
    async def get_camera(name: str) -> Response:
        async def handle() -> Response:
            return JSONResponse(told(roster.get(name)), headers=NEVER_CACHED)

        return await _answer(handle)

    @router.post("")
    async def add_camera(request: Request) -> Response:
        async def handle() -> Response:
            return JSONResponse(told(await roster.add(await _body(request))), 201)

        return await _answer(handle)

    @router.put("/{name}")
    async def replace_camera(name: str, request: Request) -> Response:
        async def handle() -> Response:
            return JSONResponse(told(await roster.replace(name, await _body(request))))

        return await _answer(handle)

    @router.delete("/{name}")
    async def remove_camera(name: str) -> Response:
        async def handle() -> Response:
            await roster.remove(name)
            return Response(status_code=204)

        return await _answer(handle)

    return router


NEVER_CACHED = {"Cache-Control": "no-store"}


async def _answer(handle: Handler) -> Response:
    """What `handle` answers, or why it cannot, with each fault's field."""
    try:
        return await handle()
    except SettingsError as error:
        return _refusal(400, "; ".join(error.lines), error.faults)
    except UnknownCamera as error:
        return _refusal(404, say(error))
    except NameTaken as error:
        return _refusal(409, say(error), (Fault(("name",), say(error)),))
    except NotSaved as error:
        return _refusal(500, say(error))
    except _BadBody as error:
        return _refusal(error.status, say(error))


def _refusal(status: int, message: str, faults: tuple[Fault, ...] = ()) -> JSONResponse:
    told = [{"field": fault.field, "message": fault.message} for fault in faults]
    return JSONResponse({"error": {"message": message, "faults": told}}, status)


async def _body(request: Request) -> dict[str, Any]:
    """The request's JSON object. Raises `_BadBody`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _BadBody(415, "the body must be JSON, with the header Content-Type: application/json")
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > LARGEST_BODY:
            raise _BadBody(413, f"the body is larger than {LARGEST_BODY} bytes")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise _BadBody(400, "the body is not valid JSON") from None
    if not isinstance(values, dict):
        raise _BadBody(400, "the body must be one JSON object, a camera's settings")
    return values

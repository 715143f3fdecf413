"""The cameras' HTTP API: its answers, refusals with their fields, and what no answer holds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from pipeline.roster import Roster
from pipeline.settings.models import CameraSettings
from pipeline.status import PipelineReading
from tests.unit.pipeline.test_roster import FakePipeline
from ui.web.camera_routes import LARGEST_BODY, build_camera_routes


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    roster = Roster(FakePipeline(), [CameraSettings(name="yard", source="rtsp://u:hunter2@h/1")], None)
    site = FastAPI()
    site.include_router(build_camera_routes(roster, lambda: PipelineReading((), {}, None)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://test") as client:
        yield client


async def test_a_camera_s_life(client: httpx.AsyncClient) -> None:
    added = await client.post("/api/cameras", json={"name": "hall", "source": "x.mp4", "loop": True})
    assert (added.status_code, added.json()["name"], added.json()["is_saved"]) == (201, "hall", False)
    told = (await client.get("/api/cameras")).json()["cameras"]
    assert [camera["name"] for camera in told] == ["yard", "hall"]
    one = (await client.get("/api/cameras/hall")).json()
    changed = await client.put("/api/cameras/hall", json=one | {"name": "porch"})
    assert (changed.status_code, changed.json()["name"]) == (200, "porch")
    assert (await client.delete("/api/cameras/porch")).status_code == 204
    assert (await client.get("/api/cameras/porch")).status_code == 404


async def test_nothing_told_holds_a_password(client: httpx.AsyncClient) -> None:
    told = await client.get("/api/cameras")
    assert told.headers["cache-control"] == "no-store"
    assert "hunter2" not in told.text
    refused = await client.post(
        "/api/cameras", json={"name": "a", "source": "rstp://u:hunter2@h", "password": 1, "username": "u"}
    )
    assert refused.status_code == 400
    assert "hunter2" not in refused.text


async def test_refusals_name_the_field(client: httpx.AsyncClient) -> None:
    zone = {"name": "z", "polygon": [[0, 0], [1, 1]]}
    refused = await client.post("/api/cameras", json={"name": "a", "source": "x", "zones": [zone], "colour": 1})
    assert refused.status_code == 400
    assert {fault["field"]: fault["message"].split(";")[0] for fault in refused.json()["error"]["faults"]} == {
        "zones[0].polygon": "needs 3 to 64 points, has 2",
        "colour": "unknown setting",
    }
    taken = await client.post("/api/cameras", json={"name": "yard", "source": "x"})
    assert (taken.status_code, taken.json()["error"]["faults"][0]["field"]) == (409, "name")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 50_000, "application/json", 400),
        (b" " * (LARGEST_BODY + 1), "application/json", 413),
    ],
)
async def test_bodies_that_are_no_camera(client: httpx.AsyncClient, content: bytes, kind: str, status: int) -> None:
    refused = await client.post("/api/cameras", content=content, headers={"Content-Type": kind})
    assert refused.status_code == status
    assert refused.json()["error"]["message"]

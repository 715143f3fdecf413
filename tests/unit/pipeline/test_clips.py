"""The acceptance clips through the real parts, decoder to files, on a scripted server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from camera_sources.base import Source, SourceState, SourceStatus
from camera_sources.frame import Frame
from pipeline.config import CameraConfig, PipelineConfig
from pipeline.feed import Feed
from pipeline.jsonl import JsonlWriter
from pipeline.station import open_camera
from pipeline.store import EventStore
from pipeline.worker import Pipeline
from tests.unit.pipeline.scripted_server import ScriptedServer

ROOM, CARS = "one-by-one-person-detection.mp4", "car-detection.mp4"
VISITS = [(6.5, 19.0), (23.0, 44.5), (50.5, 69.5), (74.5, 86.5), (92.5, 119.5), (123.5, 135.5)]
SLACK_S = 1.0


class FirstSeconds:
    """A source cut off at `until_s` of its own time."""

    def __init__(self, source: Source, until_s: float) -> None:
        self.camera_id = source.camera_id
        self.is_live = source.is_live
        self._source = source
        self._until_s = until_s
        self._is_over = False

    def start(self) -> None:
        self._source.start()

    def read(self, timeout_s: float) -> Frame | None:
        frame = None if self._is_over else self._source.read(timeout_s)
        self._is_over = self._is_over or (frame is not None and frame.pts_s > self._until_s)
        return None if self._is_over else frame

    def status(self) -> SourceStatus:
        return SourceStatus(SourceState.ENDED) if self._is_over else self._source.status()

    def stop(self) -> None:
        self._source.stop()


async def watch(weights: Path, clip: Path, data_dir: Path, until_s: float) -> list[dict[str, object]]:
    """The JSONL lines of a clip read as fast as captions allow."""
    lines = data_dir / "out.jsonl"
    writer, store = JsonlWriter(lines), EventStore(data_dir)
    async with ScriptedServer() as server:
        pipeline = Pipeline(
            PipelineConfig(str(weights), server.url),
            [CameraConfig("cam", str(clip), realtime=False)],
            store=store,
            feed=Feed(),
            jsonl=writer,
            open=lambda camera: FirstSeconds(open_camera(camera), until_s),
        )
        try:
            await pipeline.start()
            await asyncio.wait_for(pipeline.wait_ended(), 280)
            [camera] = pipeline.status().cameras
            assert camera.num_detected > 70, "5 a second were looked at"
        finally:
            await pipeline.stop()
            writer.close()
        assert len(server.chats) == len(lines.read_text().splitlines())
    assert all(store.jpeg(event.event_id) for event in store.recent(1000))
    store.close()
    return [json.loads(line) for line in lines.read_text().splitlines()]


def check_visits(lines: list[dict[str, object]], visits: list[tuple[float, float]]) -> None:
    assert {line["status"] for line in lines} <= {"ok"}
    assert {line["caption"] for line in lines} <= {"A man stands."}
    at = [float(str(line["pts_s"])) for line in lines]
    for start, end in visits:
        inside = [line for line, t in zip(lines, at, strict=True) if start - SLACK_S <= t <= end + SLACK_S]
        assert inside, f"nobody told of the visit from {start} to {end} s"
        assert inside[0]["reason"] == "new_track"
    outside = [t for t in at if not any(start - SLACK_S <= t <= end + SLACK_S for start, end in visits)]
    assert outside == []


@pytest.mark.clips
async def test_the_first_visits_are_told_and_nothing_else(weights: Path, clips: Path, tmp_path: Path) -> None:
    lines = await watch(weights, clips / ROOM, tmp_path, until_s=26.0)
    check_visits(lines, VISITS[:2])
    assert len(lines) <= 4, "a visit of 12 s is worth two captions"


@pytest.mark.clips
async def test_cars_are_nobody(weights: Path, clips: Path, tmp_path: Path) -> None:
    assert await watch(weights, clips / CARS, tmp_path, until_s=16.0) == []


@pytest.mark.clips
@pytest.mark.long
@pytest.mark.parametrize(("clip", "visits"), [(ROOM, VISITS), (CARS, [])])
async def test_whole_clips(
    weights: Path, clips: Path, tmp_path: Path, clip: str, visits: list[tuple[float, float]]
) -> None:
    check_visits(await watch(weights, clips / clip, tmp_path, until_s=1e9), visits)

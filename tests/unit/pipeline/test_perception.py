"""Whose frame is looked at next, when there is not time for all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest

import pipeline.perception
from camera_sources.frame import Frame
from pipeline.camera import Camera
from pipeline.config import CameraConfig, GateConfig, PipelineConfig
from pipeline.events import Detection
from pipeline.feed import Feed
from pipeline.perception import Perception
from tests.unit.pipeline.fakes import ListSource, RuleDetector, frame

NUM_CAMERAS = 5


class SlowDetector(RuleDetector):
    """Takes its time over every frame."""

    def detect(self, frames: Sequence[Frame]) -> list[Detection]:
        time.sleep(0.02 * len(frames))
        return super().detect(frames)


@pytest.mark.parametrize("look_s", [0.001, 0.05, 10.0])
def test_every_camera_has_its_turn_in_batches_that_take_no_longer_than_they_may(
    look_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.perception, "LOOK_S", look_s)
    arrived, detector = threading.Condition(), SlowDetector(lambda _: ())
    cameras = [
        Camera(
            ListSource([], camera_id=f"c{number}", is_live=True),
            CameraConfig(f"c{number}", "scripted"),
            GateConfig(),
            paced=True,
            detector_fps=1000.0,
            arrived=arrived,
            on_idle=lambda: None,
        )
        for number in range(NUM_CAMERAS)
    ]
    perception = Perception(
        PipelineConfig(detector="x", base_url="http://127.0.0.1:9/v1"), detector, Feed(), arrived,
        on_job=lambda *_: None, on_tracks_ended=lambda *_: None, on_failure=lambda _: None,
    )  # fmt: skip
    perception.cameras = cameras
    perception.start()
    deadline = time.monotonic() + 20
    while sum(map(len, detector.batches)) < 8 * NUM_CAMERAS and time.monotonic() < deadline:
        for camera in cameras:
            camera.hand_over(frame(camera_id=camera.camera_id))  # all have one waiting, always
        time.sleep(0.005)
    perception.stop(5.0)
    turns = Counter(camera_id for batch in detector.batches for camera_id in batch)
    assert len(turns) == NUM_CAMERAS
    assert max(turns.values()) - min(turns.values()) <= 1, "the longest unseen comes first"
    most = max(map(len, detector.batches))
    assert most == {0.001: 1, 0.05: most, 10.0: NUM_CAMERAS}[look_s]
    assert most <= {0.001: 1, 0.05: 2, 10.0: NUM_CAMERAS}[look_s]

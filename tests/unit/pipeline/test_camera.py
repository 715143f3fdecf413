"""One camera's clock and counters."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pipeline.camera import Camera
from pipeline.config import CameraConfig, GateConfig
from pipeline.events import Detection
from tests.unit.pipeline.fakes import PERSON, ListSource, frame

OTHER = replace(PERSON, x1=220, x2=300)


def camera(*, paced: bool, is_live: bool = False) -> Camera:
    return Camera(
        ListSource([], is_live=is_live),
        CameraConfig("cam", "scripted"),
        GateConfig(),
        paced=paced,
        detector_fps=5.0,
        arrived=threading.Condition(),
        on_idle=lambda: None,
    )


def chosen_at(looked: Camera, t_sent_after_s: float) -> float:
    """Somebody is there; the first caption is sent `t_sent_after_s` after its frame; when is a newcomer selected?"""
    start_pts, start_mono = 70.0, 5000.0
    for step in range(200):
        pts, mono = start_pts + step / 5, start_mono + step / 5
        boxes = (PERSON, OTHER) if step >= 2 else (PERSON,)
        _, selection = looked.judge(Detection(replace(frame(step), pts_s=pts, t_mono=mono), boxes))
        if selection is not None and step > 2:
            return pts - start_pts
        if selection is not None:
            looked.note_sent(selection.event_id, mono + t_sent_after_s)
    raise AssertionError("the newcomer was never selected")


@pytest.mark.parametrize(
    ("paced", "is_live", "expected"),
    [
        pytest.param(True, True, 0.2 + 3 + 5, id="live: time went on while the caption waited to be sent"),
        pytest.param(True, False, 0.2 + 3 + 5, id="paced file: so did its own time"),
        pytest.param(False, False, 0.2 + 5, id="unpaced file: its time stood still"),
    ],
)
def test_the_cooldown_runs_on_the_gate_s_clock_from_the_sending(paced: bool, is_live: bool, expected: float) -> None:
    assert chosen_at(camera(paced=paced, is_live=is_live), 3.0) == pytest.approx(expected, abs=0.21)


def test_a_frame_pushed_out_is_not_waited_for() -> None:
    looked = camera(paced=True)
    for seq in range(3):
        looked.hand_over(frame(seq))
    assert looked.mailbox.num_dropped == 2
    assert not looked.wait_until_idle(0.0)
    looked.mailbox.try_take()
    looked.release()
    assert looked.wait_until_idle(0.0)
    assert not looked.is_over
    looked.reading_ended()
    assert looked.is_over


def test_a_frame_that_waits_gives_way_to_a_newer_one() -> None:
    looked = camera(paced=True, is_live=True)
    looked.sampler.fps = 1.0
    first, soon, later, next_due = (replace(frame(seq), t_mono=100 + at) for seq, at in enumerate((0, 0.1, 0.3, 1.0)))
    assert looked.wants(first)
    looked.hand_over(first)
    assert not looked.wants(soon), "not yet old"
    assert looked.wants(later)
    looked.hand_over(later)
    assert looked.mailbox.try_take() is later
    assert not looked.wants(replace(later, t_mono=100.6)), "nothing waits: the detector's rate counts alone"
    assert looked.wants(next_due)


def test_a_live_camera_is_not_read_before_a_frame_is_due() -> None:
    looked = camera(paced=True, is_live=True)
    looked.sampler.fps = 1.0
    assert looked.rest_s(100.0) == 0, "the first frame is due at once"
    assert looked.wants(replace(frame(0), t_mono=100.0))
    assert looked.rest_s(100.25) == pytest.approx(0.75)
    assert looked.rest_s(101.5) == 0
    looked.hand_over(replace(frame(0), t_mono=100.0))
    assert looked.rest_s(100.05) == pytest.approx(0.15), "while it waits for the detector a newer one is wanted"
    assert camera(paced=True, is_live=False).rest_s(100.0) == 0, "of a file every frame is read"


def test_a_file_read_without_pacing_skips_no_frame_that_was_due() -> None:
    looked = camera(paced=False)
    looked.hand_over(replace(frame(0), t_mono=100.0))
    assert looked.wants(frame(0))
    assert not looked.wants(replace(frame(1), t_mono=200.0))


def test_the_measured_rate_is_of_the_last_seconds() -> None:
    looked = camera(paced=True)
    for n in range(50):
        looked.note_detected(100 + n / 5)
    assert looked.detector_fps(110.0) == pytest.approx(5.0, abs=0.4)
    assert looked.detector_fps(120.0) == 0.0
    assert looked.num_detected == 50

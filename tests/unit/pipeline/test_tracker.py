"""ByteTrack as we use it: ids that last, gaps bounded by time, and nobody in view who was not detected."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pipeline.config import GateConfig
from pipeline.events import Box, Detection
from pipeline.tracker import Tracker
from tests.unit.pipeline.fakes import frame


def walker(t: float, *, speed: float = 40, y: float = 50, conf: float = 0.9) -> Box:
    """Somebody who walks to the right."""
    return Box(20 + speed * t, y, 100 + speed * t, y + 200, conf)


def follow(tracker: Tracker, seen: Iterable[tuple[float, tuple[Box, ...]]]) -> list[dict[int, int]]:
    """Per frame: track id -> num_hits."""
    return [
        {track.track_id: track.num_hits for track in tracker.update(Detection(frame(), boxes), t)} for t, boxes in seen
    ]


def at_5_fps(start: float, end: float) -> list[float]:
    return [start + step / 5 for step in range(round((end - start) * 5))]


def test_one_walker_is_one_track_counted_from_its_first_detection() -> None:
    seen = [(t, (walker(t),)) for t in at_5_fps(1, 5)]
    views = follow(Tracker(GateConfig()), [(0.8, ()), *seen])
    assert views[0] == {}
    assert views[1:] == [{1: hits} for hits in range(1, 21)]


def test_boxes_are_the_detector_s_own_of_this_frame() -> None:
    tracker = Tracker(GateConfig())
    for t in at_5_fps(0, 2):
        boxes = (walker(t, y=20, conf=0.7), walker(t, y=250, speed=-2))
        tracks = tracker.update(Detection(frame(), boxes), t)
        assert {track.box for track in tracks} == set(boxes)


def test_people_who_pass_each_other_keep_their_ids() -> None:
    tracker = Tracker(GateConfig())
    owners: dict[float, set[int]] = {20.0: set(), 250.0: set()}
    for t in at_5_fps(0, 6):
        for track in tracker.update(Detection(frame(), (walker(t, y=20), walker(3 - t, y=250))), t):
            owners[track.box.y1].add(track.track_id)
    assert [len(ids) for ids in owners.values()] == [1, 1]


def test_a_lost_track_is_not_in_view_and_is_found_again_after_a_short_gap() -> None:
    seen = [(t, () if 2 <= t < 3.4 else (walker(0),)) for t in at_5_fps(0, 6)]
    views = follow(Tracker(GateConfig()), seen)
    assert [bool(view) for view in views] == [not 2 <= t < 3.4 for t, _ in seen]
    assert {track_id for view in views for track_id in view} == {1}


@pytest.mark.parametrize("has_updates", [True, False])
def test_after_a_long_gap_somebody_there_is_somebody_else(has_updates: bool) -> None:
    """By time, not by frames: a stream that was down has no updates in between."""
    gap = [(t, ()) for t in at_5_fps(2, 5)] if has_updates else []
    seen = [*((t, (walker(0),)) for t in at_5_fps(0, 2)), *gap, *((t, (walker(0),)) for t in at_5_fps(5, 6))]
    views = follow(Tracker(GateConfig()), seen)
    assert set(views[0]) == {1}
    assert not set(views[-1]) & set(views[0])


def test_weak_detections_carry_a_track_on_and_begin_none() -> None:
    weak_only = follow(Tracker(GateConfig()), [(t, (walker(0, conf=0.3),)) for t in at_5_fps(0, 2)])
    assert weak_only == [{}] * 10
    fading = follow(Tracker(GateConfig()), [(t, (walker(0, conf=0.9 if t < 1 else 0.25),)) for t in at_5_fps(0, 2)])
    assert fading[-1] == {1: 10}


def test_cameras_do_not_share_ids() -> None:
    trackers = [Tracker(GateConfig()), Tracker(GateConfig())]
    for t in at_5_fps(0, 1):
        for tracker in trackers:
            assert set(follow(tracker, [(t, (walker(t),))])[0]) == {1}

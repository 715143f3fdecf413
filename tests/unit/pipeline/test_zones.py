"""Zones: who stands where, against an independent judge of points and polygons; and polygons that are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from matplotlib.path import Path as Outline

from pipeline.config import CameraConfig, Zone
from pipeline.events import Box
from pipeline.zones import contains, counted, find_fault, find_zone, foot_point
from tests.unit.pipeline.fakes import track

COORDINATES = st.integers(0, 100).map(lambda n: n / 100)
POINTS = st.tuples(COORDINATES, COORDINATES)
LOWER_HALF = ((0.0, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0))
LEFT_HALF = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))


@given(polygon=st.lists(POINTS, min_size=3, max_size=8), x=st.integers(0, 99), y=st.integers(0, 99))
def test_a_point_is_inside_where_another_library_says_so(polygon: list[tuple[float, float]], x: int, y: int) -> None:
    assume(find_fault(polygon) is None)
    point = (x / 100 + 0.00437, y / 100 + 0.00391)  # beside the grid the corners lie on
    outline = Outline([*polygon, polygon[0]], closed=True)
    near = [outline.contains_point(point, radius=radius) for radius in (-1e-6, 1e-6)]
    assume(near[0] == near[1])  # not on an edge
    assert contains(polygon, point) == near[0]


@pytest.mark.parametrize(
    ("polygon", "words"),
    [
        ([(0, 0), (1, 1)], "needs 3 to 64 points, has 2"),
        ([(0, 0), (1, 0), (1.2, 1)], r"has point 3 at \[1.2, 1\], outside the picture"),
        ([(0, 0), (1, 1), (1, 0), (0, 1)], "crosses itself between points 1 and 3"),
        ([(0, 0), (0.5, 0.5), (1, 1)], "encloses no area"),
    ],
)
def test_polygons_that_are_none(polygon: list[tuple[float, float]], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(find_fault(polygon))
    assert find_fault(LOWER_HALF) is None


def test_the_foot_of_somebody_at_the_picture_s_edge_stands_in_the_zone_that_ends_there() -> None:
    assert contains(LOWER_HALF, foot_point(Box(600, 100, 640, 480, 0.9), 640, 480))
    assert contains(LOWER_HALF, foot_point(Box(-9, 100, 9, 499, 0.9), 640, 480))
    assert not contains(LOWER_HALF, foot_point(Box(100, 10, 200, 230, 0.9), 640, 480)), "a head is no foot"


def test_the_first_zone_counts_and_an_excluded_one_always_wins() -> None:
    drive, lawn = Zone("drive", LEFT_HALF), Zone("lawn", LOWER_HALF)
    street = Zone("street", LOWER_HALF, excluded=True)
    assert find_zone((drive, lawn), (0.2, 0.8)) == "drive"
    assert find_zone((drive, lawn), (0.8, 0.8)) == "lawn"
    assert find_zone((drive, lawn), (0.8, 0.2)) is None
    assert find_zone((drive, street), (0.2, 0.8)) is None
    assert find_zone((street,), (0.2, 0.2)) == ""


def test_who_is_too_small_or_stands_elsewhere_does_not_count() -> None:
    camera = CameraConfig("yard", "x", zones=(Zone("lawn", LOWER_HALF),), min_height=0.25)
    tall, small, away = Box(0, 300, 50, 420, 0.9), Box(0, 340, 50, 420, 0.9), Box(0, 10, 50, 200, 0.9)
    tracks = [track(number, box) for number, box in enumerate((tall, small, away))]
    assert counted(tracks, camera, 640, 480) == (replace(tracks[0], zone="lawn"),)
    assert counted(tracks, replace(camera, zones=()), 640, 480) == (tracks[0], tracks[2])

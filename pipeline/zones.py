"""Where in a camera's picture people count: zones as polygons, and the least size. Pure geometry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.config import CameraConfig, Zone
from pipeline.events import Box, Track

Point = tuple[float, float]

EDGE = 1e-6  # a foot on the picture's edge stands in a zone that ends there
MAX_POINTS = 64


def counted(tracks: Iterable[Track], config: CameraConfig, width: int, height: int) -> tuple[Track, ...]:
    """The tracks that count for this camera in a picture of that size, each with the zone it stands in."""
    tall = (track for track in tracks if track.box.y2 - track.box.y1 >= config.min_height * height)
    if not config.zones:
        return tuple(tall)
    placed = ((track, find_zone(config.zones, foot_point(track.box, width, height))) for track in tall)
    return tuple(replace(track, zone=zone or None) for track, zone in placed if zone is not None)


def foot_point(box: Box, width: int, height: int) -> Point:
    """Where a person stands: the middle of the box's lower edge, in shares of the picture, inside of it."""
    x, y = (box.x1 + box.x2) / 2 / width, box.y2 / height
    return min(max(x, EDGE), 1 - EDGE), min(max(y, EDGE), 1 - EDGE)


def find_zone(zones: Sequence[Zone], point: Point) -> str | None:
    """The name of the first zone that `point` lies in; empty where no zone has to be stood in; None where it does not
    count."""
    if any(zone.excluded and contains(zone.polygon, point) for zone in zones):
        return None
    wanted = [zone for zone in zones if not zone.excluded]
    if not wanted:
        return ""
    return next((zone.name for zone in wanted if contains(zone.polygon, point)), None)


def contains(polygon: Sequence[Point], point: Point) -> bool:
    """Whether `point` lies in `polygon` (even-odd rule: a line from it to the right crosses an odd number of edges)."""
    x, y = point
    is_inside = False
    for (x1, y1), (x2, y2) in _edges(polygon):
        if (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
            is_inside = not is_inside
    return is_inside


def find_fault(polygon: Sequence[Point]) -> str | None:
    """What keeps `polygon` from being an area, as the end of a sentence that begins with it; None if nothing does."""
    if not 3 <= len(polygon) <= MAX_POINTS:
        return f"needs 3 to {MAX_POINTS} points, has {len(polygon)}"
    for index, (x, y) in enumerate(polygon):
        if not (0 <= x <= 1 and 0 <= y <= 1):
            return f"has point {index + 1} at [{x:g}, {y:g}], outside the picture: shares of it go from 0 to 1"
    edges = _edges(polygon)
    for first in range(len(edges)):
        for second in range(first + 1, len(edges)):
            if _cross(*edges[first], *edges[second]):
                return f"crosses itself between points {first + 1} and {second + 1}; order its points around the area"
    if abs(_area(polygon)) < EDGE:
        return "encloses no area"
    return None


def _edges(polygon: Sequence[Point]) -> list[tuple[Point, Point]]:
    return [(point, polygon[(index + 1) % len(polygon)]) for index, point in enumerate(polygon)]


def _area(polygon: Sequence[Point]) -> float:
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in _edges(polygon)) / 2


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments a-b and c-d cross between their ends; touching is no crossing."""
    return _side(a, b, c) * _side(a, b, d) < 0 and _side(c, d, a) * _side(c, d, b) < 0


def _side(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

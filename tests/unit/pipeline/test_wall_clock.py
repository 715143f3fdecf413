"""A clock that was set anew is not believed for a day; one that runs, or slept, is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import RetentionConfig
from pipeline.retention import DAY_S, expire
from pipeline.store import EventStore
from pipeline.wall_clock import WallClock
from tests.unit.pipeline.test_jsonl import OK_EVENT

NOW = 1_800_000_000.0


class Hands:
    """Two clocks: `pass_s` moves both, as time does, `set_by` the wall clock alone."""

    def __init__(self) -> None:
        self.wall, self.steady = NOW, 5000.0

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def set_by(self, seconds: float) -> None:
        self.wall += seconds


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def clock(hands: Hands) -> WallClock:
    return WallClock(lambda: hands.wall, lambda: hands.steady)


def test_a_clock_that_runs_is_believed_also_when_it_is_put_right_by_a_little(hands: Hands, clock: WallClock) -> None:
    for seconds in (0.0, 300.0, 40 * DAY_S):
        hands.pass_s(seconds)
        hands.set_by(-30.0)
        assert clock.try_now() == hands.wall


@pytest.mark.parametrize("step_s", [40 * DAY_S, -40 * DAY_S, 2 * 3600.0])
def test_a_clock_that_was_set_is_not_believed_for_a_day(hands: Hands, clock: WallClock, step_s: float) -> None:
    hands.set_by(step_s)
    for _ in range(23):
        assert clock.try_now() is None
        hands.pass_s(3600.0)
    hands.set_by(-step_s)
    assert clock.try_now() is None, "set back, the day begins anew"
    hands.pass_s(23 * 3600.0)
    assert clock.try_now() is None
    hands.pass_s(3600.0)
    assert clock.try_now() == hands.wall


def test_a_clock_set_years_on_costs_no_event(hands: Hands, clock: WallClock, tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    store.add(OK_EVENT, b"x")
    limits = RetentionConfig(days=30, max_gb=None)
    hands.wall = OK_EVENT.t_wall + DAY_S
    clock = WallClock(lambda: hands.wall, lambda: hands.steady)
    hands.set_by(400 * DAY_S)
    assert expire(store, limits, clock.try_now()) == 0
    hands.set_by(-400 * DAY_S)
    hands.pass_s(2 * DAY_S)
    assert expire(store, limits, clock.try_now()) == 0
    hands.pass_s(2 * DAY_S)
    assert clock.try_now() is not None
    hands.pass_s(30 * DAY_S)
    assert expire(store, limits, clock.try_now()) == 1
    store.close()

"""A clock that was set anew, or begins far past the last event, is not believed for a day; others are."""

from __future__ import annotations

from dataclasses import replace
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
    return WallClock(None, lambda: hands.wall, lambda: hands.steady)


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
    clock = WallClock(None, lambda: hands.wall, lambda: hands.steady)
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


def test_a_clock_that_begins_years_on_costs_no_event_within_a_day(hands: Hands, tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    store.add(OK_EVENT, b"x")
    limits = RetentionConfig(days=30, max_gb=None)
    hands.wall = OK_EVENT.t_wall + 400 * DAY_S
    clock = WallClock(OK_EVENT.t_wall, lambda: hands.wall, lambda: hands.steady)
    assert expire(store, limits, clock.try_now()) == 0
    hands.pass_s(DAY_S - 1.0)
    assert expire(store, limits, clock.try_now()) == 0
    assert expire(store, RetentionConfig(days=30, max_gb=0.0), clock.try_now()) == 1, (
        "what is too much goes all the same"
    )
    store.add(OK_EVENT, b"x")
    hands.pass_s(1.0)
    assert expire(store, limits, clock.try_now()) == 1, "nobody has set it for a day"
    store.close()


def test_a_machine_that_is_off_every_night_forgets_what_is_old(hands: Hands, tmp_path: Path) -> None:
    store, last = EventStore(tmp_path), None
    limits = RetentionConfig(days=2, max_gb=None)
    num_removed = 0
    for day in range(5):
        clock = WallClock(last, lambda: hands.wall, lambda: hands.steady)
        num_removed += expire(store, limits, clock.try_now())
        last = store.add(replace(OK_EVENT, event_id=f"e{day}", t_wall=hands.wall), b"x").t_wall
        hands.set_by(DAY_S)
        hands.steady = 60.0
    assert num_removed == 2
    store.close()


@pytest.mark.parametrize("ahead_s", [DAY_S, 0.0, -400 * DAY_S])
def test_a_clock_that_begins_near_the_last_event_or_before_it_is_believed(hands: Hands, ahead_s: float) -> None:
    hands.wall = NOW + ahead_s
    clock = WallClock(NOW, lambda: hands.wall, lambda: hands.steady)
    assert clock.try_now() == hands.wall, "what removes too little does no harm"

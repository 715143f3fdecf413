"""Sampling of a clock, and what rate a share of a core affords."""

from __future__ import annotations

import itertools

import pytest

from pipeline.rate import CORE_SHARE, SLOWEST_FPS, Sampler, affordable_fps


@pytest.mark.parametrize(
    ("frame_fps", "fps", "expected"),
    [(10, 5, 50), (12.5, 5, 50), (25, 5, 50), (30, 5, 50), (29.97, 5, 50), (3, 5, 30), (5, 5, 50), (30, 1, 10)],
)
def test_ten_seconds_give_ten_seconds_worth(frame_fps: float, fps: float, expected: int) -> None:
    sampler = Sampler(fps)
    taken = [i / frame_fps for i in range(int(10 * frame_fps)) if sampler.try_take(i / frame_fps)]
    assert len(taken) == pytest.approx(expected, abs=1)
    assert taken[0] == 0.0
    if frame_fps % fps == 0:
        gaps = [later - sooner for sooner, later in itertools.pairwise(taken)]
        assert gaps == pytest.approx([1 / fps] * len(gaps)), "no drift where the rates divide"


def test_after_a_gap_the_grid_starts_anew_and_nothing_is_made_up_for() -> None:
    sampler = Sampler(5)
    assert [t for t in (0.0, 0.2, 60.0, 60.1, 60.2, 60.3) if sampler.try_take(t)] == [0.0, 0.2, 60.0, 60.2]


def test_a_clock_set_back_does_not_blind_it() -> None:
    sampler = Sampler(5)
    assert [sampler.try_take(t) for t in (100.0, 0.0, 0.1, 0.2)] == [True, True, False, True]


def test_the_rate_follows_the_cost() -> None:
    assert affordable_fps(0.01, 1, 5.0) == 5.0
    assert affordable_fps(0.2, 1, 5.0) * 0.2 == pytest.approx(CORE_SHARE)
    assert affordable_fps(0.1, 2, 5.0) * 0.1 * 2 == pytest.approx(CORE_SHARE)
    assert affordable_fps(30.0, 8, 5.0) == SLOWEST_FPS
    assert affordable_fps(0.0, 1, 5.0) == 5.0

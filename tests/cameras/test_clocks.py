"""The pure parts: growing timestamps and reconnect delays."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camera_sources.backoff import Backoff
from camera_sources.pts import FileClock, LiveClock


def test_a_files_own_times_are_kept() -> None:
    clock = FileClock(0.04)
    assert [clock.tick(t) for t in (0.04, 0.08, 1.5, 1.6)] == [0.04, 0.08, 1.5, 1.6]


def test_without_times_it_is_frame_index_over_fps() -> None:
    clock = FileClock(0.1)
    assert [clock.tick(0.0) for _ in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_missing_or_repeated_time_is_one_frame_later() -> None:
    clock = FileClock(0.1)
    assert [clock.tick(t) for t in (1.0, nan, 1.05, 1.4)] == pytest.approx([1.0, 1.1, 1.2, 1.4])


def test_a_loop_goes_on_one_frame_after_the_end() -> None:
    clock = FileClock(0.5)
    times = [clock.tick(t) for t in (0.0, 0.1, 2.0)]
    clock.rewind()
    times += [clock.tick(t) for t in (0.0, 0.1, 2.0)]
    clock.rewind()
    times += [clock.tick(t) for t in (0.0, 0.1)]
    assert times == pytest.approx([0.0, 0.1, 2.0, 2.5, 2.6, 4.5, 5.0, 5.1])


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32) | st.just("rewind"), max_size=50))
def test_file_times_grow_whatever_the_container_says(script: list[float | str]) -> None:
    clock, times = FileClock(0.04), []
    for entry in script:
        if isinstance(entry, str):
            clock.rewind()
        elif not entry > 1e6:
            times.append(clock.tick(entry))
    assert all(earlier < later for earlier, later in pairwise(times))


def test_live_times_follow_the_stream_and_survive_its_restart() -> None:
    clock = LiveClock(t_start=100.0)
    first = [clock.tick(raw, t) for raw, t in ((0.0, 103.0), (0.1, 103.12), (0.2, 103.19))]
    assert first == pytest.approx([3.0, 3.1, 3.2])  # the stream's spacing, not the jitter of arrival
    again = [clock.tick(raw, t) for raw, t in ((0.0, 130.0), (0.1, 130.3))]
    assert again == pytest.approx([30.0, 30.1])


def test_live_times_grow_without_usable_stream_times() -> None:
    clock = LiveClock(t_start=0.0)
    times = [clock.tick(0.0, t / 10) for t in range(100)]
    assert all(earlier < later for earlier, later in pairwise(times))
    assert times[-1] == pytest.approx(9.9, abs=1.1)


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(first_s=1.0, max_s=30.0)
    assert [backoff.delay_s(n, 0.0) for n in (1, 2, 3, 4, 5, 6, 7, 10_000)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_backoff_jitters_downwards() -> None:
    chance = Random(1)
    delays = {Backoff().delay_s(3, chance.random()) for _ in range(100)}
    assert len(delays) == 100
    assert min(delays) >= 2.0
    assert max(delays) <= 4.0

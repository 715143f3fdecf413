"""Slices of a picture's work: everything once, in order, none too long."""

from __future__ import annotations

from itertools import pairwise

import pytest

from backend.models.patch_layout import Cost, Pace, Run, find_runs, plan_slices

SEGMENTS = ([64, 64, 32, 64, 64, 32, 16, 16, 8], [360], [64, 64, 32, 64, 64, 32, 16, 16, 8])
NUM_PATCHES = 360


@pytest.mark.parametrize("scale", [1e-7, 1e-5, 1e-4])
def test_everything_is_done_once_and_in_order(scale: float) -> None:
    pace = Pace(*(Cost(scale, factor * scale) for factor in (1, 2, 3, 1)), pair_s=scale / 100)
    slices = plan_slices(NUM_PATCHES, SEGMENTS, (0, 2), pace, slice_s=0.007)
    works = [work for some in slices for work in some]
    stages = [("embed", 0)]
    for block in range(3):
        stages += [("project", block), ("attend", block)] + ([("tap", block)] if block in (0, 2) else [])
    stages.append(("merge", 2))
    assert list(dict.fromkeys((w.stage, w.block) for w in works)) == stages
    for stage in stages:
        rows = [row for w in works if (w.stage, w.block) == stage for row in w.rows]
        assert rows == list(range(NUM_PATCHES))
    assert all(sum(w.seconds for w in some) <= 0.007 or len(some) == 1 for some in slices)
    assert all(sum(w.seconds for w in (*a, b[0])) > 0.007 for a, b in pairwise(slices)), "no slice ends too early"


def test_ranges_are_worth_their_call() -> None:
    """Where bringing the weights alone takes longer than a slice, a call takes as many rows as cost as much again."""
    dear = Cost(call_s=0.02, row_s=0.0005)
    assert {len(rows) for rows in dear.split(400, slice_s=0.007)} == {40}
    assert dear.of(40) == pytest.approx(0.04)
    assert {len(rows) for rows in Cost(0.003, 0.0005).split(48, slice_s=0.007)} == {8}
    assert Cost().split(400, slice_s=0.007) == [range(400)]


def test_whole_segments_of_one_length_run_together_and_parts_alone() -> None:
    runs = list(find_runs(range(70, 336), SEGMENTS[0]))
    assert runs == [
        Run(70, 58, 64, 64, 1),
        Run(128, 32, 128, 32, 1),
        Run(160, 128, 160, 64, 2),
        Run(288, 32, 288, 32, 1),
        Run(320, 16, 320, 16, 1),
    ]


@pytest.mark.parametrize("rows", [range(360), range(8, 16), range(56, 200), range(350, 360)])
def test_runs_cover_their_rows_and_see_their_segments(rows: range) -> None:
    ends = [sum(SEGMENTS[0][: n + 1]) for n in range(len(SEGMENTS[0]))]
    covered = []
    for run in find_runs(rows, SEGMENTS[0]):
        for row in range(run.start, run.start + run.length):
            covered.append(row)
            first = run.key_start + (row - run.key_start) // run.key_len * run.key_len
            number = next(n for n, end in enumerate(ends) if row < end)
            assert (first, first + run.key_len) == (ends[number] - SEGMENTS[0][number], ends[number])
    assert covered == list(rows)

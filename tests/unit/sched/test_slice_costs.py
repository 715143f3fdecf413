from __future__ import annotations

import pytest

from backend.sched.slice_costs import SliceCosts
from backend.types.step import EncodeSlice
from tests.unit.sched.builders import image

CAT = image("cat", 64, num_slices=4)


def test_nothing_is_known_of_the_first_picture() -> None:
    costs = SliceCosts()
    assert costs.slice_s(CAT, 0) is None
    assert costs.total_s([EncodeSlice(CAT, 0, 4)]) == 0.0


def test_a_slice_is_known_once_it_was_timed_and_its_neighbours_are_guessed() -> None:
    costs = SliceCosts()
    costs.observe([EncodeSlice(CAT, 0, 1)], 0.02)
    costs.observe([EncodeSlice(CAT, 1, 1)], 0.01)
    assert [costs.slice_s(CAT, i) for i in range(4)] == pytest.approx([0.02, 0.01, 0.015, 0.015])
    assert costs.slice_s(image("dog", 64, num_slices=4), 1) == pytest.approx(0.01), "a picture of the same kind"


def test_other_kinds_are_guessed_by_what_a_slice_makes() -> None:
    costs = SliceCosts()
    costs.observe([EncodeSlice(CAT, 0, 1)], 0.02)
    assert costs.slice_s(image("wide", 128, num_slices=4), 3) == pytest.approx(0.04), "twice as large"
    assert costs.slice_s(image("tiled", 128, num_slices=8), 3) == pytest.approx(0.02), "twice as many tiles"


def test_a_longer_piece_is_shared_out_as_expected() -> None:
    costs = SliceCosts()
    for index, seconds in enumerate((0.03, 0.01)):
        costs.observe([EncodeSlice(CAT, index, 1)], seconds)
    for _ in range(40):
        costs.observe([EncodeSlice(CAT, 0, 2)], 0.08)
    assert [costs.slice_s(CAT, i) for i in range(2)] == pytest.approx([0.06, 0.02], rel=0.01)


def test_a_hiccup_moves_it_by_less_than_its_size_and_no_time_at_all_by_nothing() -> None:
    costs = SliceCosts()
    costs.observe([EncodeSlice(CAT, 0, 1)], 0.01)
    costs.observe([EncodeSlice(CAT, 0, 1)], -0.005)
    assert costs.slice_s(CAT, 0) == 0.01
    costs.observe([EncodeSlice(CAT, 0, 1)], 1.0)
    known_s = costs.slice_s(CAT, 0)
    assert known_s is not None
    assert 0.01 < known_s < 0.02


def test_kinds_are_bounded() -> None:
    costs = SliceCosts()
    for num_embeds in range(1, 200):
        costs.observe([EncodeSlice(image("x", num_embeds, num_slices=2), 0, 1)], num_embeds / 1000)
    assert len(costs._costs_by_kind) == 64
    assert costs.slice_s(image("x", 199, num_slices=2), 0) == pytest.approx(0.199)


FRAMES = [image(f"frame {i}", 64, num_slices=4) for i in range(8)]


def learn_batches(costs: SliceCosts, share: float, times: int = 3) -> None:
    """One frame takes 4 ms; each more in a batch, `share` of that."""
    for _ in range(times):
        for length in (1, 2, 4):
            seconds = 0.004 * (1 + share * (length - 1))
            costs.observe([EncodeSlice(FRAMES[0], 0, 4, tuple(FRAMES[1:length]))], seconds)


def test_a_batch_that_was_never_timed_counts_as_its_images_and_is_tried() -> None:
    costs = SliceCosts()
    assert costs.batch_len(FRAMES[0], 8) == 8
    costs.observe([EncodeSlice(FRAMES[0], 0, 4)], 0.004)
    assert costs.slice_s(FRAMES[0], 1, 3) == pytest.approx(0.003)
    assert [costs.batch_len(FRAMES[0], n) for n in (1, 2, 3, 4, 7, 8)] == [1, 2, 2, 4, 4, 8]


@pytest.mark.parametrize(("share", "length"), [(0.2, 4), (0.8, 4), (0.95, 1), (1.0, 1)])
def test_images_go_together_where_that_pays(share: float, length: int) -> None:
    costs = SliceCosts()
    learn_batches(costs, share, times=8)
    assert costs.batch_len(FRAMES[0], 7) == length
    assert costs.total_s([EncodeSlice(FRAMES[0], 0, 4, tuple(FRAMES[1:4]))]) == pytest.approx(
        0.004 * (1 + 3 * share), rel=0.15
    )


def test_a_batch_is_not_judged_by_its_first_time() -> None:
    """Which was slow, for something had to be made ready."""
    costs = SliceCosts()
    costs.observe([EncodeSlice(FRAMES[0], 0, 4)], 0.004)
    costs.observe([EncodeSlice(FRAMES[0], 0, 4, (FRAMES[1],))], 1.0)
    assert costs.slice_s(FRAMES[0], 0, 2) == pytest.approx(0.002), "as much as was expected, no more"
    learn_batches(costs, 0.1, times=4)
    assert costs.batch_len(FRAMES[0], 2) == 2


def test_the_first_timing_of_all_may_be_a_batch() -> None:
    costs = SliceCosts()
    costs.observe([EncodeSlice(FRAMES[0], 0, 4, (FRAMES[1],))], 0.004)
    assert costs.slice_s(FRAMES[0], 0, 2) == pytest.approx(0.001)
    assert costs.slice_s(FRAMES[0], 0) == pytest.approx(0.0005), "half a batch of two"
    for _ in range(3):
        costs.observe([EncodeSlice(FRAMES[0], 0, 4)], 0.004)
        costs.observe([EncodeSlice(FRAMES[0], 0, 4, (FRAMES[1],))], 0.004)
    assert costs.batch_len(FRAMES[0], 2) == 2


def test_slices_that_would_be_felt_are_not_made_longer() -> None:
    costs = SliceCosts()
    for length in (1, 2, 4) * 4:
        costs.observe([EncodeSlice(FRAMES[0], 0, 4, tuple(FRAMES[1:length]))], 4 * (0.004 + 0.003 * (length - 1)))
    assert costs.batch_len(FRAMES[0], 4) == 2, "4 would take 13 ms a slice"

from __future__ import annotations

import pytest

from backend.sched.encoder_ledger import EncoderLedger
from tests.unit.sched.builders import image


def ledger_with(capacity: int, **sizes: int) -> EncoderLedger:
    """Resident images of these sizes, the first one the least recently used; none is pinned."""
    ledger = EncoderLedger(capacity)
    for key, num_embeds in sizes.items():
        ledger.pin([key])
        assert ledger.try_reserve(image(key, num_embeds), may_take_pinned=False, in_use=())
        ledger.advance(key, 1)
        ledger.complete(key)
    ledger.pin([])
    assert ledger.take_evictions() == ()
    return ledger


def test_an_image_is_resident_after_its_last_slice_is_computed() -> None:
    ledger = EncoderLedger(10)
    cat = image("cat", 6, num_slices=3)
    ledger.pin(["cat"])
    assert ledger.try_reserve(cat, may_take_pinned=True, in_use=())
    assert ledger.num_embeds == 6, "room is taken from the first slice on"

    first = ledger.advance("cat", 2)
    assert (first.first_slice, first.num_slices, first.is_last) == (0, 2, False)
    last = ledger.advance("cat", 2)
    assert (last.first_slice, last.num_slices, last.is_last) == (2, 1, True)
    assert ledger.is_encoded("cat")
    assert not ledger.is_resident("cat")
    ledger.complete("cat")
    assert ledger.is_resident("cat")
    ledger.check()


@pytest.mark.parametrize(
    ("pinned", "may_take_pinned", "in_use", "size", "evicted"),
    [
        pytest.param([], False, [], 2, (), id="there is room"),
        pytest.param([], False, [], 4, ("a",), id="least recently used first"),
        pytest.param([], False, [], 7, ("a", "b"), id="as many as it takes"),
        pytest.param(["a"], False, [], 4, ("b",), id="pinned ones stay"),
        pytest.param(["a", "b", "c"], False, [], 4, None, id="all are pinned"),
        pytest.param(["new", "a", "b", "c"], True, [], 4, ("c",), id="the least important pinned one goes"),
        pytest.param(["a", "b", "c", "new"], True, [], 4, None, id="more important ones stay"),
        pytest.param(["new", "a", "b"], True, [], 7, ("c", "b"), id="unpinned before pinned"),
        pytest.param([], False, ["a"], 4, ("b",), id="what this step reads stays"),
        pytest.param(["new"], True, ["a", "b", "c"], 4, None, id="all are being read"),
        pytest.param(["a"], False, [], 11, None, id="all or nothing"),
    ],
)
def test_room_is_made(
    pinned: list[str], may_take_pinned: bool, in_use: list[str], size: int, evicted: tuple[str, ...] | None
) -> None:
    ledger = ledger_with(12, a=3, b=3, c=4)
    ledger.pin(pinned)
    done = ledger.try_reserve(image("new", size), may_take_pinned=may_take_pinned, in_use=in_use)
    assert done is (evicted is not None)
    assert ledger.take_evictions() == (evicted or ())
    assert ("new" in ledger) is done
    ledger.check()


def test_a_used_image_is_the_youngest() -> None:
    ledger = ledger_with(6, a=3, b=3)
    ledger.touch("a")
    assert ledger.try_reserve(image("new", 3), may_take_pinned=False, in_use=())
    assert ledger.take_evictions() == ("b",)


def test_a_half_encoded_image_that_nobody_waits_for_is_dropped() -> None:
    ledger = EncoderLedger(10)
    ledger.pin(["cat"])
    assert ledger.try_reserve(image("cat", 6, num_slices=3), may_take_pinned=True, in_use=())
    ledger.advance("cat", 1)
    ledger.pin([])
    assert ledger.take_evictions() == ("cat",)
    assert ledger.num_embeds == 0


def test_a_failed_image_leaves_no_trace() -> None:
    ledger = ledger_with(6, a=3)
    ledger.drop("a")
    assert ledger.num_embeds == 0
    assert ledger.take_evictions() == ()

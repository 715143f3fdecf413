"""The mailbox drops the oldest and counts it, and wakes whoever waits."""

from __future__ import annotations

import threading
import time

import pytest

from pipeline.mailbox import Mailbox


def test_a_full_box_drops_the_oldest_returns_it_and_counts_it() -> None:
    box: Mailbox[int] = Mailbox(2)
    assert [box.put(i) for i in (1, 2, 3, 4)] == [None, None, 1, 2]
    assert (len(box), box.num_dropped) == (2, 2)
    assert [box.try_take(), box.try_take(), box.try_take()] == [3, 4, None]


def test_a_put_wakes_the_reader() -> None:
    box: Mailbox[str] = Mailbox(1)
    threading.Timer(0.05, box.put, ["frame"]).start()
    started = time.monotonic()
    assert box.take(5.0) == "frame"
    assert time.monotonic() - started < 4.0
    assert box.take(0.01) is None


def test_boxes_may_share_one_condition() -> None:
    arrived = threading.Condition()
    boxes = [Mailbox[int](1, arrived), Mailbox[int](1, arrived)]
    threading.Timer(0.05, boxes[1].put, [7]).start()
    with arrived:
        assert arrived.wait_for(lambda: any(len(box) for box in boxes), 5.0)
    assert [box.try_take() for box in boxes] == [None, 7]


def test_a_box_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Mailbox(0)

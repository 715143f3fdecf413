"""Where the time of captions goes, over the latest of them."""

from __future__ import annotations

import pytest

from pipeline.events import EventStatus
from tests.unit.ui.news import ended, queued, words
from ui.web.board import Board
from ui.web.latencies import KEPT_EVENTS, Spread


def test_each_stretch_of_a_caption_s_life() -> None:
    board = Board(["door"])
    board.take(queued("e1"))
    for text, t_token in (("A ", 100.5), ("man ", 100.6), ("waits.", 102.0)):
        board.take(words("e1", text, t_token))
    board.take(ended("e1"))
    board.take(ended("e2", EventStatus.FAILED, error="down"))
    spreads = board.latencies.spreads()
    assert {name: spread.count for name, spread in spreads.items()} == {
        "waited": 1,
        "first_word": 1,
        "between_words": 2,
        "glass_to_caption": 1,
    }
    assert spreads["waited"].p50_s == pytest.approx(0.2)
    assert spreads["first_word"].p50_s == pytest.approx(0.3)
    assert spreads["glass_to_caption"].p99_s == pytest.approx(2.0)
    assert spreads["between_words"].p99_s == pytest.approx(1.4)


def test_bounded_and_of_this_run_alone() -> None:
    board = Board(["door"])
    board.restore([ended("old").event])
    assert board.latencies.spreads()["waited"] == Spread(None, None, 0)
    for number in range(3 * KEPT_EVENTS):
        board.take(ended(f"e{number}"))
    assert board.latencies.spreads()["waited"].count == KEPT_EVENTS

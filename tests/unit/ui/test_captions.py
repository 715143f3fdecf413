"""What is said about captions, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.ui.news import ended, queued
from ui.web.board import MAX_CARDS, Board, Card, CardState
from ui.web.captions import detail, latency, shown, summary


def card(state: CardState = CardState.OK, **values: float | str | None) -> Card:
    times = {"caption_s": 1.4, "first_token_s": 0.6, "waited_s": 0.1}
    return Card("e", "door", "new_track", state, 0.0, 0.0, **{**times, **values})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shown", "number", "beside"),
    [
        (card(), "1.4 s after the picture was taken", "first word after 600 ms"),
        (card(waited_s=4.0, caption_s=5.4), "5.4 s after the picture was taken", "4.0 s of it waiting for the engine"),
        (card(CardState.STREAMING), "", "first word after 600 ms"),
        (card(CardState.FAILED, error="refused"), "", "refused"),
        (card(CardState.SUPERSEDED), "", ""),
    ],
)
def test_how_old_the_picture_was_and_what_the_time_went_to(shown: Card, number: str, beside: str) -> None:
    assert (latency(shown), detail(shown)) == (number, beside)


def test_only_this_run_s_events_are_counted() -> None:
    board = Board(["door"])
    board.restore([ended("old").event])
    assert summary(board.cards()) == ""
    board.take(ended("new"))
    board.take(queued("waiting"))
    assert summary(board.cards()) == "2 since the start, 1 described"
    for n in range(MAX_CARDS):
        board.take(ended(f"e{n}"))
    assert summary(board.cards()) == f"newest {MAX_CARDS}, {MAX_CARDS} described"


def test_a_caption_that_contradicts_the_detector_is_marked_and_not_hidden() -> None:
    event = replace(ended("e").event, count_mismatch=True)
    said = shown(Card.of(event))
    assert (said["text"], said["contradicts"]) == ("A man waits.", "The detector saw one person")
    assert shown(Card.of(replace(event, count_mismatch=False)))["contradicts"] == ""

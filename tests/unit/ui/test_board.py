"""What the page shows, from the news alone."""

from __future__ import annotations

import pytest

from camera_sources.base import SourceState, SourceStatus
from pipeline.events import EventStatus
from pipeline.feed import CameraChanged
from tests.unit.ui.news import ended, queued, seen, words
from ui.web.board import MAX_CARDS, MAX_FRAMES, Board, CardState


@pytest.fixture
def board() -> Board:
    return Board(["door"])


def test_a_caption_grows_word_by_word_and_ends_with_its_latencies(board: Board) -> None:
    board.take(queued("e1"))
    (card,) = board.cards()
    assert (card.state, card.text, card.first_token_s) == (CardState.QUEUED, "", None)
    versions = [card.version]
    for text, t_token in (("A man", 100.5), (" waits.", 101.0)):
        board.take(words("e1", text, t_token))
        versions.append(board.cards()[0].version)
    (card,) = board.cards()
    assert (card.state, card.text) == (CardState.STREAMING, "A man waits.")
    assert card.first_token_s == pytest.approx(0.5)
    board.take(ended("e1"))
    (card,) = board.cards()
    versions.append(card.version)
    assert card.state is CardState.OK
    assert card.caption_s == pytest.approx(2.0)
    assert card.jpeg == b"picture"
    assert versions == sorted(set(versions)), "a page redraws only what has a newer version"


@pytest.mark.parametrize("status", [EventStatus.FAILED, EventStatus.CANCELLED, EventStatus.SUPERSEDED])
def test_an_event_without_a_caption_is_a_state_and_never_text(board: Board, status: EventStatus) -> None:
    board.take(queued("e1"))
    board.take(words("e1", "A ma", 100.5))
    board.take(ended("e1", status, error="no answer within 60 s"))
    (card,) = board.cards()
    assert (card.state, card.text, card.error) == (CardState(status), "", "no answer within 60 s")
    assert card.caption_s is None


def test_words_that_come_after_the_end_change_nothing(board: Board) -> None:
    board.take(queued("e1"))
    board.take(ended("e1"))
    board.take(words("e1", "late", 103.0))
    board.take(words("unknown", "lost", 103.0))
    (card,) = board.cards()
    assert (card.state, card.text) == (CardState.OK, "A man waits.")


def test_newest_first_and_bounded(board: Board) -> None:
    for n in range(MAX_CARDS + 5):
        board.take(queued(f"e{n}"))
    assert [card.event_id for card in board.cards()][:2] == [f"e{MAX_CARDS + 4}", f"e{MAX_CARDS + 3}"]
    assert len(board.cards()) == MAX_CARDS
    assert board.card("e0") is None


def test_the_store_s_events_are_the_page_s_past(board: Board) -> None:
    board.restore([ended("newer").event, ended("older", EventStatus.FAILED, error="down").event])
    board.take(queued("live"))
    assert [card.event_id for card in board.cards()] == ["live", "newer", "older"]
    assert board.cards()[1].jpeg is None  # its picture is in the store
    assert [card.is_past for card in board.cards()] == [False, True, True]


def test_pictures_are_found_by_number_while_kept(board: Board) -> None:
    view = board.cameras["door"]
    assert view.frame(None) is None
    for seq in range(MAX_FRAMES + 3):
        board.take(seen(seq))
    newest = view.frame(None)
    assert newest is not None
    assert newest.frame_seq == MAX_FRAMES + 2
    by_number = view.frame(MAX_FRAMES)
    assert by_number is not None
    assert by_number.jpeg == b"jpeg %d" % MAX_FRAMES
    assert view.frame(0) is newest  # long gone
    assert len(view.frames) == MAX_FRAMES


def test_a_camera_s_state_follows_the_news(board: Board) -> None:
    assert board.cameras["door"].status.state is SourceState.CONNECTING
    board.take(CameraChanged("door", SourceStatus(SourceState.DOWN, "no route to host"), 0.0))
    view = board.cameras["door"]
    assert view.status.reason == "no route to host"
    t_down = view.t_state
    board.take(CameraChanged("door", SourceStatus(SourceState.DOWN, "no route to host"), 0.0))
    assert view.t_state == t_down, "the same state again is not a change"
    board.take(CameraChanged("door", SourceStatus(SourceState.LIVE), 5.0, is_live=False))
    assert view.t_state > t_down
    assert not view.is_live

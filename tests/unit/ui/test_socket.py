"""What a page is told over its socket: what is new to it, when it can take it, and never what it missed."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from camera_sources.base import SourceState, SourceStatus
from pipeline.config import Zone
from pipeline.feed import CameraChanged, CameraRemoved, StoreChanged
from tests.unit.ui.news import ended, queued, seen, words
from ui.web.board import Board
from ui.web.socket import FORGET_S, PICTURE_S, STATES_S, Link

NOW = 1000.0


@pytest.fixture
def board() -> Board:
    return Board(["door", "yard"])


def texts(link: Link, now: float) -> list[dict[str, Any]]:
    return [json.loads(message) for message in link.next_messages(now) if isinstance(message, str)]


def pictures(link: Link, now: float) -> list[tuple[dict[str, Any], bytes]]:
    return [unpack(message) for message in link.next_messages(now) if isinstance(message, bytes)]


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack_from(">H", message)
    return json.loads(message[2 : 2 + size]), message[2 + size :]


def test_a_picture_names_its_camera_and_carries_its_boxes(board: Board) -> None:
    board.take(CameraChanged("door", SourceStatus(SourceState.LIVE), 5.0))
    board.take(seen(3))
    ((header, jpeg),) = pictures(Link(board), NOW)
    assert (header["camera"], header["seq"], header["width"], header["height"]) == ("door", 3, 64, 48)
    assert header["tracks"] == [[7, 10, 20, 30, 60]]
    assert jpeg == b"jpeg 3"


def test_boxes_of_a_picture_that_is_not_current_are_left_out(board: Board) -> None:
    board.take(CameraChanged("door", SourceStatus(SourceState.STALE), 5.0))
    board.take(seen(3))
    ((header, _),) = pictures(Link(board), NOW)
    assert header["tracks"] == []


def test_zones_are_told_when_they_change(board: Board) -> None:
    link = Link(board)
    drive = Zone("drive", ((0.1, 0.5), (0.9, 0.5), (0.5, 1.0)))
    street = Zone("street", ((0.0, 0.0), (1.0, 0.0), (0.5, 0.3)), excluded=True)

    def told(now: float) -> list[dict[str, Any]]:
        return [message["zones"] for message in texts(link, now) if message["kind"] == "zones"]

    board.take(CameraChanged("door", SourceStatus(SourceState.LIVE), 5.0, True, (drive, street)))
    assert told(NOW) == [
        {
            "door": [
                {"name": "drive", "kind": "include", "polygon": [[0.1, 0.5], [0.9, 0.5], [0.5, 1.0]]},
                {"name": "street", "kind": "exclude", "polygon": [[0.0, 0.0], [1.0, 0.0], [0.5, 0.3]]},
            ]
        }
    ]
    assert told(NOW + STATES_S) == []
    board.take(CameraChanged("door", SourceStatus(SourceState.LIVE), 5.0))
    assert told(NOW + 2 * STATES_S) == [{"door": []}]
    board.take(CameraChanged("door", SourceStatus(SourceState.LIVE), 5.0, True, (drive,)))
    board.take(CameraRemoved("door"))
    assert told(NOW + 3 * STATES_S) == []


def test_the_newest_picture_waits_for_the_receipt_of_the_last(board: Board) -> None:
    link = Link(board)
    board.take(seen(1))
    board.take(seen(1, "yard"))
    assert {header["camera"] for header, _ in pictures(link, NOW)} == {"door", "yard"}
    for seq in range(2, 9):
        board.take(seen(seq))
    assert pictures(link, NOW + 1) == [], "nothing goes out, and nothing is kept, before the page has shown the last"
    link.received("door")
    assert [header["seq"] for header, _ in pictures(link, NOW + 1)] == [8]
    link.received("door")
    assert pictures(link, NOW + 2) == [], "the same picture again is not news"


def test_a_lost_receipt_does_not_hold_a_camera_back_for_good(board: Board) -> None:
    link = Link(board)
    board.take(seen(1))
    assert len(pictures(link, NOW)) == 1
    board.take(seen(2))
    assert pictures(link, NOW + FORGET_S - 1) == []
    assert [header["seq"] for header, _ in pictures(link, NOW + FORGET_S + 1)] == [2]


def test_five_pictures_a_second_at_most(board: Board) -> None:
    link = Link(board)
    num_sent = 0
    for tick in range(200):
        board.take(seen(tick))
        num_sent += len(pictures(link, NOW + tick / 100))
        link.received("door")
    assert num_sent == pytest.approx(2.0 / PICTURE_S, abs=1)


def test_captions_are_told_whole_once_and_then_as_they_change(board: Board) -> None:
    board.take(ended("old"))
    link = Link(board)
    cards, _ = texts(link, NOW)
    assert [card["id"] for card in cards["cards"]] == ["old"]
    assert texts(link, NOW) == []
    board.take(queued("new"))
    for word in ("A ", "man ", "waits."):
        board.take(words("new", word, 101.0))
    (cards,) = texts(link, NOW)
    assert [(card["id"], card["text"]) for card in cards["cards"]] == [("new", "A man waits.")]
    assert cards["summary"] == "2 since the start, 1 described"


def test_a_page_without_captions_is_told_so_at_once(board: Board) -> None:
    cards, cameras = texts(Link(board), NOW)
    assert cards["cards"] == []
    assert [camera["id"] for camera in cameras["cameras"]] == ["door", "yard"]


def test_states_come_twice_a_second_with_their_reason(board: Board) -> None:
    board.take(CameraChanged("door", SourceStatus(SourceState.DOWN, "no route to host"), 0.0))
    link = Link(board)
    *_, message = texts(link, NOW)
    door = message["cameras"][0]
    assert (door["state"], door["reason"], door["has_picture"]) == ("down", "no route to host", False)
    assert texts(link, NOW + STATES_S / 2) == []
    assert len(texts(link, NOW + STATES_S)) == 1
    board.take(CameraRemoved("door"))
    board.take(CameraChanged("roof", SourceStatus(SourceState.LIVE), 5.0))
    (message,) = [text for text in texts(link, NOW + 2 * STATES_S) if text["kind"] == "cameras"]
    assert [camera["id"] for camera in message["cameras"]] == ["yard", "roof"]


def test_a_store_in_trouble_is_told_and_taken_back(board: Board) -> None:
    link = Link(board)
    texts(link, NOW)
    board.take(StoreChanged("no space left on device", 12, 3))
    (news,) = texts(link, NOW)
    assert news["trouble"] == "Events are not being kept: no space left on device (12 wait in memory, 3 lost)"
    board.take(StoreChanged("", 0, 3))
    (news,) = texts(link, NOW)
    assert news["trouble"] == ""

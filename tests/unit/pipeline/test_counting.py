"""What captions say about numbers of people, and what they leave open."""

from __future__ import annotations

import math

import pytest

from pipeline.counting import contradicts, said_range


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man stands at a door.", (1, 1)),
        ("Two men are walking down the street.", (2, 2)),
        ("3 people wait.", (3, 3)),
        ("A man and a woman are sitting in a room.", (2, 2)),
        ("Two young boys, a girl and a woman play.", (4, 4)),
        ("A man stands. A man wears a hat.", (1, 2)),
        ("A man is talking to a woman.", (1, 2)),
        ("A man in front of several people.", (1, math.inf)),
        ("A group of people at a bus stop.", None),
        ("People cross the road.", None),
        ("An old man with a red car and a dog.", (1, 1)),
        ("Nobody is there.", (0, 0)),
        ("There are no people in this room.", (0, 0)),
        ("A street with two cars.", None),
        ("The man opens the door.", None),
        ("Somebody stands.", (1, 1)),
        ("One of two women waves.", (2, 2)),
        ("", None),
    ],
)
def test_said_range(caption: str, expected: tuple[int, float] | None) -> None:
    assert said_range(caption) == expected


@pytest.mark.parametrize(
    ("caption", "num_counted", "num_detected", "expected"),
    [
        ("Two men walk.", 1, 1, True),
        ("Two men walk.", 1, 2, False),
        ("A man walks.", 2, 2, True),
        ("A man walks.", 1, 4, False),
        ("Nobody is there.", 1, 1, True),
        ("A street.", 1, 1, False),
        ("A man in front of several people.", 5, 5, False),
    ],
)
def test_contradictions(caption: str, num_counted: int, num_detected: int, expected: bool) -> None:
    assert contradicts(caption, num_counted, num_detected) is expected

from __future__ import annotations

import pytest

from backend.sched.chunking import chunk_end, hit_len
from tests.unit.sched.builders import image, request, sequence

CAT, DOG = image("cat", 6), image("dog", 4)


@pytest.mark.parametrize(
    ("computed", "soft", "hard", "expected"),
    [
        (0, 7, 64, 7),
        (0, 64, 7, 7),
        (0, 64, 64, 20),
        (18, 7, 64, 20),
        (5, 0, 64, 5),
        (5, -3, 64, 5),
        (5, 7, 0, 5),
    ],
)
def test_budgets_and_the_end(computed: int, soft: int, hard: int, expected: int) -> None:
    seq = sequence(request("a", 20), computed=computed)
    assert chunk_end(seq, soft, hard, lambda key: True) == expected


@pytest.mark.parametrize(
    ("computed", "resident", "expected"),
    [
        pytest.param(0, "", 4, id="just before the first placeholder"),
        pytest.param(4, "", 4, id="at the first placeholder"),
        pytest.param(6, "", 6, id="among the placeholders"),
        pytest.param(0, "cat", 12, id="before the second image"),
        pytest.param(0, "dog", 4, id="the second image does not help"),
        pytest.param(10, "dog", 18, id="the first image is computed"),
        pytest.param(0, "cat dog", 18, id="all there"),
    ],
)
def test_a_chunk_ends_before_an_image_that_is_not_there(computed: int, resident: str, expected: int) -> None:
    """Tokens: 4 of text, 6 cat, 2 of text, 4 dog, 2 of text."""
    seq = sequence(request("a", 4, CAT, 2, DOG, 2), computed=computed)
    assert chunk_end(seq, 64, 64, lambda key: key in resident.split()) == expected


@pytest.mark.parametrize(
    ("computed", "soft", "hard", "expected"),
    [
        pytest.param(0, 5, 64, 4, id="cut before the span"),
        pytest.param(0, 10, 64, 10, id="fits exactly"),
        pytest.param(0, 11, 64, 11, id="beyond it"),
        pytest.param(4, 1, 64, 10, id="overshoots soft"),
        pytest.param(4, 1, 6, 10, id="reaches hard"),
        pytest.param(4, 6, 5, 4, id="R5: never over hard"),
        pytest.param(4, 0, 64, 4, id="no soft room, no start"),
    ],
)
def test_atomic_spans_are_whole(computed: int, soft: int, hard: int, expected: int) -> None:
    """Tokens: 4 of text, 6 of an atomic image, 4 of text."""
    seq = sequence(request("a", 4, CAT, 4, atomic=True), computed=computed)
    assert chunk_end(seq, soft, hard, lambda key: True) == expected


@pytest.mark.parametrize(
    ("atomic", "num_blocks", "expected"),
    [(False, 2, 8), (True, 1, 4), (True, 2, 4), (True, 3, 12), (True, 0, 0)],
)
def test_a_prefix_hit_does_not_end_inside_an_atomic_span(atomic: bool, num_blocks: int, expected: int) -> None:
    """Blocks of 4; the image lies at tokens 5 to 10."""
    assert hit_len(sequence(request("a", 5, CAT, 9, atomic=atomic)), num_blocks) == expected

"""Prompt lookup, against a scan of all the tokens."""

from __future__ import annotations

import random

import pytest

from backend.sched.lookup import LONGEST, NO_TOKEN, Lookup


def place_by_scan(tokens: list[int]) -> int:
    """Index of the token after the last four tokens where they came before, or else after the last two; 0: none."""
    for length in (4, 2):
        run = tokens[-length:]
        if len(run) < length or NO_TOKEN in run:
            continue
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == run:
                # The latest one decides: what an image follows is not guessed, and not looked for further back.
                if tokens[place] != NO_TOKEN:
                    return place
                break
    return 0


def agreeing(tokens: list[int], place: int) -> int:
    """Tokens before `place` that equal the last ones, image placeholders none of them."""
    length = 0
    while length < min(place, LONGEST):
        token = tokens[-length - 1]
        if token == NO_TOKEN or tokens[place - length - 1] != token:
            break
        length += 1
    return length


@pytest.mark.parametrize("seed", range(40))
def test_the_index_finds_what_a_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = [*range(rng.choice((2, 4, 12))), *([NO_TOKEN] if seed % 2 else [])]
    tokens: list[int] = []
    lookup, place = Lookup(), 0
    for _ in range(300):
        token = rng.choice(vocabulary)
        if place and rng.random() < 0.6 and tokens[place] != NO_TOKEN:
            token = tokens[place]
        stays = bool(place) and tokens[place] == token
        tokens.append(token)
        lookup.push(token)
        place = place + 1 if stays else place_by_scan(tokens)
        if tokens[place] == NO_TOKEN:
            place = 0
        assert lookup.guess == (tokens[place] if place else None)
        assert lookup.match_len == (agreeing(tokens, place) if place else 0)


def test_a_copy_is_guessed_to_its_end_and_beyond() -> None:
    lookup = Lookup([1, 2, 3, 4, 5, 9, 1, 2])
    assert lookup.propose(4) == (3, 4, 5, 9)
    assert lookup.propose(10) == (3, 4, 5, 9, 1, 2, 3, 4, 5, 9), "what runs into the end goes on with itself"
    assert lookup.propose(0) == ()


def test_one_token_over_and_over_is_guessed() -> None:
    assert Lookup([7, 7, 7]).propose(3) == (7, 7, 7)


def test_placeholders_are_never_guessed() -> None:
    assert Lookup([1, 2, NO_TOKEN, NO_TOKEN, 1, 2]).propose(3) == ()
    assert Lookup([1, 2, 3, NO_TOKEN, 1, 2]).propose(3) == (3,)
    assert Lookup([NO_TOKEN] * 5).propose(3) == ()


def test_words_never_said_twice_are_not_guessed() -> None:
    assert Lookup(range(50)).propose(5) == ()
    assert Lookup().propose(5) == ()

"""Token by token equals all at once, and stop strings are met wherever the token borders fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.detokenize import Detokenizer, StopStrings
from tests.api.scripted import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()


def pieces_of(token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER)
    return [*(detokenizer.push(i) for i in token_ids), detokenizer.flush()]


@given(st.text(max_size=40))
def test_pieces_join_to_the_text(text: str) -> None:
    pieces = pieces_of(TOKENIZER.encode(text).ids)
    assert "".join(pieces) == text


@given(st.lists(st.integers(0, 255), max_size=60))
def test_any_tokens_join_to_what_decoding_them_gives(token_ids: list[int]) -> None:
    assert "".join(pieces_of(token_ids)) == TOKENIZER.decode(token_ids)


def test_no_piece_holds_half_a_character() -> None:
    pieces = pieces_of(TOKENIZER.encode("é世🌍").ids)
    assert [p for p in pieces if p] == ["é", "世", "🌍"]


def test_half_a_character_comes_out_at_the_end() -> None:
    assert pieces_of(TOKENIZER.encode("a世").ids[:-1]) == ["a", "", "", "\ufffd"]


def test_special_tokens_give_no_text() -> None:
    eos = TOKENIZER.token_to_id(EOS)
    assert eos is not None
    assert "".join(pieces_of([*TOKENIZER.encode("ab").ids, eos, *TOKENIZER.encode("c").ids])) == "abc"


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "hit"),
    [
        ((), ["a", "b"], ["a", "b"], False),
        (("b",), ["a", "b", "c"], ["a", "", ""], True),
        (("bc",), ["ab", "cd"], ["a", ""], True),
        (("bcd",), ["ab", "c", "e"], ["a", "", "bce"], False),
        (("bcd",), ["ab", "c"], ["a", "", "bc"], False),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (("xx", "b"), ["axb"], ["ax"], True),
        (("cd", "b"), ["abcd"], ["a"], True),
        (("abcdef", "d"), ["abc", "d"], ["", "abc"], True),
    ],
)
def test_stop_strings(stops: tuple[str, ...], pieces: list[str], out: list[str], hit: bool) -> None:
    stop = StopStrings(stops)
    got = [stop.push(piece) for piece in pieces]
    rest = stop.flush()
    assert [*got, rest] == out or (not rest and got == out)
    assert stop.hit is hit


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_where_pieces_end_makes_no_difference(text: str, stops: list[str], cuts: list[int]) -> None:
    stop, out, at = StopStrings(stops), "", 0
    for cut in cuts:
        out += stop.push(text[at : at + cut])
        at += cut
    out += stop.flush()
    starts = [text.find(s) for s in stops if s in text]
    # The first stop to be completed wins, as it does for a reader who sees one character at a time.
    if starts:
        assert stop.hit
        assert text.startswith(out)
        assert not any(s in out for s in stops)
    else:
        assert not stop.hit
        assert out == text

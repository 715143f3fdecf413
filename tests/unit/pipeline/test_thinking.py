"""A model that thinks aloud: what it thinks is no caption, and does not break one in JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.answer import JsonAnswer, TextAnswer
from pipeline.events import Details
from pipeline.thinking import without_thoughts

JSON = '{"title": "Gate", "description": "A man waits.", "count": 1, "notable": false}'


def in_pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("thought", ["", "<think>Is that {\n a man?</think>\n\n", "\n<think>\n</think>"])
def test_thinking_text_is_never_shown_and_breaks_no_json(thought: str, size: int) -> None:
    answer = TextAnswer()
    assert "".join(map(answer.take, in_pieces(thought + "A man waits.", size))) == "A man waits."
    assert answer.result() == ("A man waits.", None)
    structured = JsonAnswer()
    assert "".join(map(structured.take, in_pieces(thought + JSON, size))) == "A man waits."
    assert structured.result() == ("A man waits.", Details("Gate", 1, False))


@pytest.mark.parametrize("answer", [TextAnswer, JsonAnswer])
def test_an_answer_that_is_all_thought_has_no_words(answer: type[TextAnswer | JsonAnswer]) -> None:
    one = answer()
    assert [one.take(piece) for piece in ("<thi", "nk>", "Hmm, a man", " perhaps")] == ["", "", "", ""]
    assert one.result() == ("", None)


def test_thoughts_that_were_begun_in_the_prompt_end_with_their_mark() -> None:
    for answer, words in ((TextAnswer(), "A man waits."), (JsonAnswer(), JSON)):
        for piece in in_pieces(f"Somebody stands there.</think>{words}", 4):
            answer.take(piece)
        assert answer.result()[0] == "A man waits."


@given(st.text(alphabet="<think>/ ab", max_size=40), st.integers(1, 5))
def test_pieces_and_the_whole_come_to_the_same(text: str, size: int) -> None:
    answer = TextAnswer()
    for piece in in_pieces(text, size):
        answer.take(piece)
    assert answer.result()[0] == without_thoughts(text).strip()

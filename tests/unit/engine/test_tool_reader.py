"""Tool calls read out of text: every form, however it is cut, and text that only looks like one."""

from __future__ import annotations

import json

import pytest

from backend.tool_calls import HERMES, LLAMA3, MISTRAL, ToolFormat
from backend.tool_reader import ToolReader

ONE = '{"name": "look", "arguments": {"at": "a \\"}{ sign", "n": [1, {"x": 2}]}}'
TWO = '{"arguments": {"far": true}, "name": "go"}'
BARE = '{"name": "look", "parameters": {"at": {"x": "}"}}}'
AT = {"at": 'a "}{ sign', "n": [1, {"x": 2}]}


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, object]]]:
    """The text and the (name, arguments) of all calls."""
    reader, text = ToolReader(form), ""
    calls: list[tuple[str, str]] = []
    ids = set()
    for said in [s for piece in pieces for s in reader.push(piece)] + reader.end():
        if isinstance(said, str):
            text += said
        elif said.call_id is not None:
            assert said.index == len(calls)
            ids.add(said.call_id)
            calls.append((said.name or "", said.arguments))
        else:
            calls[said.index] = (calls[said.index][0], calls[said.index][1] + said.arguments)
    assert len(ids) == len(calls)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


UNREADABLE = [
    '{"name": "a\\q", "arguments": {}}',
    '{"name": "a\nb", "arguments": {}}',
    '{"name": "\\ud800", "arguments": {}}',
    '{"arguments": {}, "name": "\\ud800"}',
    '{"name": "f", "arguments": "\\udfff"}',
    '{"name": "f", "argument": ' + "[" * 5000 + "]" * 5000 + "}",
]

CASES = [
    *((HERMES, f"<tool_call>{call}</tool_call>", f"<tool_call>{call}", []) for call in UNREADABLE),
    *((LLAMA3, call, call, []) for call in UNREADABLE),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", "", [("look", AT)]),
    (
        HERMES,
        f"I look. \n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{TWO}</tool_call>",
        "I look.",
        [("look", AT), ("go", {"far": True})],
    ),
    (HERMES, "a < b, <tool> and <tool_cal", "a < b, <tool> and <tool_cal", []),
    (HERMES, "<tool_call>\n{not json}\n</tool_call>", "<tool_call>{not json}", []),
    (HERMES, '<tool_call>\n{"name": "lo', '<tool_call>{"name": "lo', []),
    (HERMES, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}', []),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
    (HERMES, "Just words.  \n", "Just words.  \n", []),
    (HERMES, "<tool_call>nothing", "<tool_call>nothing", []),
    (LLAMA3, BARE, "", [("look", {"at": {"x": "}"}})]),
    (LLAMA3, f"<|python_tag|>{BARE}; {BARE}", "", [("look", {"at": {"x": "}"}})] * 2),
    (LLAMA3, f"Words {BARE}", f"Words {BARE}", []),
    (LLAMA3, '{"colour": "red"}', '{"colour": "red"}', []),
    (MISTRAL, f"[TOOL_CALLS][{ONE}, {TWO}]", "", [("look", AT), ("go", {"far": True})]),
    (MISTRAL, "[1] and [TOO", "[1] and [TOO", []),
]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_however_it_is_cut(
    form: ToolFormat, answer: str, text: str, calls: list[tuple[str, object]], size: int
) -> None:
    assert read(form, [answer[i : i + size] for i in range(0, len(answer), size)]) == (text, calls)


def test_arguments_come_while_they_are_written() -> None:
    reader = ToolReader(HERMES)
    pieces = [said for char in f"<tool_call>\n{ONE}" for said in reader.push(char)]
    assert len(pieces) > 20
    assert not any(isinstance(piece, str) for piece in pieces)


def test_a_call_that_is_cut_short_is_told_as_far_as_it_came() -> None:
    reader = ToolReader(HERMES)
    reader.push('<tool_call>{"name": "look", "arguments": {"at": "th')
    assert reader.end() == []


def test_arguments_of_any_depth_come_as_they_are() -> None:
    arguments = '{"x": ' + "[" * 5000 + "]" * 5000 + "}"
    _, piece = ToolReader(HERMES).push(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert not isinstance(piece, str)
    assert piece.arguments == arguments


def test_ids_have_the_length_the_form_wants() -> None:
    (piece,) = ToolReader(MISTRAL).push('[TOOL_CALLS][{"name": "f", "arguments": {}}]')[:1]
    assert not isinstance(piece, str)
    assert len(piece.call_id or "") == 9

"""Structural tags as grammars: what they let through, what they stop, and what is refused by name."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher

from backend.errors import Rejected
from backend.server.structural_tag import tag_grammar
from backend.structured import Vocabulary
from tests.checkpoints import build_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
STRUCTURES = {
    "structures": [{"begin": f"<function={name}>", "schema": SCHEMA, "end": "</function>"} for name in "ab"],
    "triggers": ["<function="],
}
DIGITS = {"begin": "<t>", "content": {"type": "regex", "pattern": "[0-9]+/"}, "end": "</t>"}
SEQUENCE = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "A: "},
        {
            "type": "or",
            "elements": [{"type": "json_schema", "json_schema": SCHEMA}, {"type": "const_string", "value": "none"}],
        },
        {"type": "any_text"},
    ],
}


def triggered(**options: bool) -> dict[str, Any]:
    return {"format": {"type": "triggered_tags", "triggers": ["<t>"], "tags": [DIGITS], **options}}


@cache
def tokenizer() -> Any:
    return build_tokenizer()


@cache
def vocabulary() -> Any:
    return Vocabulary(tokenizer(), [tokenizer().eos_token_id]).load()


def is_let_through(tag: Any, text: str) -> bool:
    """Whether `text` may come, whole, and the answer may then end."""
    matcher = LLMatcher(vocabulary(), LLMatcher.grammar_from_lark(tag_grammar(tag, "tag")), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = tokenizer().encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("tag", "texts", "others"),
    [
        (
            STRUCTURES,
            ["hello", 'hi <function=a>{"x": 1}</function> bye', "a < b <fun"],
            ["hi <function=c>", '<function=b>{"y": 1}</function>', '<function=a>{"x": 1}'],
        ),
        (triggered(), ["hello", "hi <t>12/</t> more", "<t>1/</t><t>2/</t>"], ["<t>x/</t>"]),
        (triggered(at_least_one=True), ["hi <t>12/</t> more", "<t>1/</t><t>2/</t>"], ["hello"]),
        (triggered(stop_after_first=True), ["hello", "hi <t>12/</t>"], ["hi <t>12/</t> more"]),
        (triggered(at_least_one=True, stop_after_first=True), ["<t>1/</t>"], ["hello", "<t>1/</t> more"]),
        ({"format": SEQUENCE}, ["A: none", 'A: {"x": 3} and so on'], ["B", "A: nobody"]),
        ({"format": {"type": "tag", **DIGITS}}, ["<t>7/</t>"], ["7/", "<t>7/</t> "]),
        *(
            ({"format": {"type": "regex", "pattern": pattern}}, [text], [text + text, "x"])
            for pattern, text in (("a/b", "a/b"), (r"a\/b", "a/b"), (r"a\\/b", "a\\/b"), (r"a\\\/b", "a\\/b"))
        ),
    ],
)
def test_what_they_let_through(tag: Any, texts: list[str], others: list[str]) -> None:
    for said in (tag, json.dumps(tag)):
        assert [text for text in texts if not is_let_through(said, text)] == []
        assert [text for text in others if is_let_through(said, text)] == []


@pytest.mark.parametrize(
    ("tag", "param"),
    [
        ("{", "tag"),
        ("[]", "tag"),
        ({}, "tag.format.type"),
        ({"format": {"type": "qwen_xml_parameter"}}, "tag.format.type"),
        ({"format": {"type": []}}, "tag.format.type"),
        ({"format": {"type": "const_string"}}, "tag.format.value"),
        ({"format": {"type": "sequence", "elements": []}}, "tag.format.elements"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}},
            "tag.format.elements[0].type",
        ),
        ({"structures": STRUCTURES["structures"]}, "tag.triggers"),
        ({"structures": STRUCTURES["structures"], "triggers": ["["]}, "tag.tags[0].begin"),
        ({"structures": [{"begin": "<"}], "triggers": ["<"]}, "tag.tags[0].end"),
    ],
)
def test_what_is_wrong_is_named(tag: Any, param: str) -> None:
    with pytest.raises(Rejected) as caught:
        tag_grammar(tag, "tag")
    assert caught.value.param == param


@pytest.mark.parametrize("depth", [60, 300, 100_000])
def test_what_nests_too_deep_is_refused(depth: int) -> None:
    text = '{"format": ' + '{"type": "or", "elements": [' * depth + "]}" * depth + "}"
    with pytest.raises(Rejected, match=r"^tag .*(100 levels|262144)"):
        tag_grammar(text, "tag")
    if depth < 100:
        with pytest.raises(Rejected, match=r"^tag nests more than 100 levels deep"):
            tag_grammar(json.loads(text), "tag")


@pytest.mark.parametrize("as_text", [False, True])
def test_how_much_is_read_is_bounded(as_text: bool) -> None:
    """Every tag is compared with every trigger, where everybody's requests are read."""
    tags = [{"begin": "<x", "schema": {}, "end": ""}] * 10_000
    big = {"structures": tags, "triggers": ["<y", "<"]}
    with pytest.raises(Rejected, match=r"^tag is \d+ characters long; at most 262144 are taken") as caught:
        tag_grammar(json.dumps(big) if as_text else big, "tag")
    assert caught.value.param == "tag"
    with pytest.raises(Rejected, match=r"^tag\.triggers holds 129 texts; at most 128 are taken") as caught:
        tag_grammar({"structures": tags[:1], "triggers": ["<"] * 129}, "tag")
    assert caught.value.param == "tag.triggers"
    assert "start" in tag_grammar({"structures": tags[:1], "triggers": ["<"] * 128}, "tag")

"""Structured output on a live server with random weights: what comes out fits because it must."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import openai
import pytest
from jsonschema_rs import is_valid

from tests.api.conftest import Live

HI: list[Any] = [{"role": "user", "content": "Describe the image."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colour": {"enum": ["red", "green"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


def ask(live: Live, **fields: Any) -> Any:
    return live.openai().chat.completions.create(**{"model": "tiny", "messages": HI, "max_tokens": 150} | fields)


def demand(**structured_outputs: Any) -> dict[str, Any]:
    return {"extra_body": {"structured_outputs": structured_outputs}}


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_kept(llama: Live, seed: int) -> None:
    choice = ask(llama, seed=seed, response_format=AS_PERSON).choices[0]
    assert choice.finish_reason == "stop"
    assert is_valid(PERSON, json.loads(choice.message.content))
    same = ask(llama, seed=seed, **demand(json=json.dumps(PERSON))).choices[0]
    assert same.message.content == choice.message.content


def test_a_stream_says_the_same(llama: Live) -> None:
    chunks = list(ask(llama, seed=1, response_format=AS_PERSON, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == ask(llama, seed=1, response_format=AS_PERSON).choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        (demand(regex=r"(yes|no), \d{3}"), r"(yes|no), \d{3}"),
        (demand(choice=["left", 'ri"ght', "straße"]), 'left|ri"ght|straße'),
        (demand(grammar='start: "x" item+ "."\nitem: "a" | "bc"'), r"x(a|bc)+\."),
        (demand(grammar='root ::= "[" num "]"\nnum ::= [0-9] | [0-9] num'), r"\[\d+\]"),
        (demand(json={"type": "integer"}, whitespace_pattern=" "), r"-?\d+"),
        (demand(json={"enum": [{"a": 1}]}, disable_any_whitespace=True), r'\{"a":1\}'),
    ],
)
def test_expressions_choices_and_grammars(llama: Live, fields: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        # A bias for what ends: random weights would go on with repetitions for long.
        text = ask(llama, seed=seed, max_tokens=400, temperature=1.5, **fields).choices[0]
        if text.finish_reason == "stop":
            assert re.fullmatch(pattern, text.message.content)
        else:
            assert "+" in pattern


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, demand(json_object=True)], ids=["openai", "vllm"]
)
def test_any_object(llama: Live, fields: dict[str, Any]) -> None:
    choice = ask(llama, seed=2, **fields).choices[0]
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def test_what_max_tokens_cuts_says_so(llama: Live) -> None:
    choice = ask(llama, max_tokens=3, response_format=AS_PERSON).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")


async def test_grammars_in_one_batch_and_in_choices(llama: Live) -> None:
    kinds = [{"response_format": AS_PERSON, "n": 3}, demand(regex="[a-f]{40}"), demand(choice=["one", "two"]), {}]
    alone = [[c.message.content for c in ask(llama, seed=6, **kind).choices] for kind in kinds]
    async with llama.async_openai() as client:
        together = await asyncio.gather(
            *(
                client.chat.completions.create(model="tiny", messages=HI, max_tokens=150, seed=6, **kind)
                for kind in kinds
            )
        )
    assert [[c.message.content for c in reply.choices] for reply in together] == alone
    assert len(alone[0]) == 3
    assert all(is_valid(PERSON, json.loads(text)) for text in alone[0])


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}},
            "response_format.json_schema.schema",
            "objekt",
        ),
        (demand(json={"if": {}}), "structured_outputs.json", "if"),
        (demand(json="{"), "structured_outputs.json", "EOF"),
        (demand(regex="(a"), "structured_outputs.regex", "regex"),
        (demand(grammar="start: missing"), "structured_outputs.grammar", "missing"),
        (demand(choice=[]), "structured_outputs.choice", "at least 1"),
        (demand(), "structured_outputs", "exactly one"),
        (demand(regex="a", choice=["a"]), "structured_outputs", "it holds 2"),
        (demand(structural_tag="{}"), "structured_outputs.structural_tag.format.type", "must be one of"),
        (demand(regex="a" * (1 << 18) + "b"), "structured_outputs.regex", "262144"),
        ({"response_format": AS_PERSON, **demand(regex="a")}, "structured_outputs", "send one"),
        ({"extra_body": {"ignore_eos": True}, "response_format": AS_PERSON}, "ignore_eos", "combined"),
    ],
)
def test_what_cannot_be_compiled_is_a_400(llama: Live, fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        ask(llama, **fields)
    assert caught.value.param == param


def test_deep_schemas_are_refused_before_anything_recurses(llama: Live) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(150):
        schema = {"type": "array", "items": schema}
    with pytest.raises(openai.BadRequestError, match="100 levels"):
        ask(llama, **demand(json=schema))

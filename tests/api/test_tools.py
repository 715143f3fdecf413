"""Tool calls through the official client: forced from random weights, read out of a scripted answer, sent back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema_rs import is_valid
from transformers import AutoTokenizer

from tests.api.conftest import Live, Scripted, live_checkpoint
from tests.api.scripted import ScriptedAdapter

HI: list[Any] = [{"role": "user", "content": "What is there?"}]
LOOK = {
    "type": "object",
    "properties": {"camera": {"enum": ["yard", "gate"]}, "zoom": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["camera"],
    "additionalProperties": False,
}
WAIT = {"type": "object", "properties": {"s": {"$ref": "#/$defs/s"}}, "required": ["s"], "additionalProperties": False,
        "$defs": {"s": {"type": "boolean"}}}  # fmt: skip
SCHEMAS = {"look": LOOK, "wait": WAIT}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]

BODY = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}CALL{% endfor %}{% endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif %}"""
AS_JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
CALLS = {
    "hermes": f"<tool_call>\n{AS_JSON}\n</tool_call>",
    "llama3": AS_JSON.replace('arguments":', 'parameters":'),
    "mistral": f"[TOOL_CALLS][{AS_JSON}]",
}


def template_of(form: str) -> str:
    return "{% if tools %}{{ tools | tojson }}{% endif %}" + BODY.replace("CALL", CALLS[form])


@pytest.fixture(scope="module", params=["hermes", "llama3", "mistral"])
def taught(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path_factory: Any) -> Iterator[Live]:
    """The tiny text model with a template that knows tools."""
    path = tmp_path_factory.mktemp("tools") / request.param
    teach(checkpoint("llama"), path, request.param)
    with live_checkpoint(path, max_model_len=2048) as server:
        yield server


def teach(source: Path, path: Path, form: str) -> None:
    """Copy a checkpoint to `path` with a template that calls tools in that form."""
    shutil.copytree(source, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = template_of(form)
    tokenizer.save_pretrained(path)


def ask(live: Live, **fields: Any) -> Any:
    return live.openai().chat.completions.create(
        **{"model": "tiny", "messages": HI, "max_tokens": 200, "tools": TOOLS, "seed": 1} | fields
    )


def check(call: Any) -> None:
    assert call.type == "function"
    assert is_valid(SCHEMAS[call.function.name], json.loads(call.function.arguments))


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_is_made_and_fits(taught: Live, seed: int) -> None:
    choice = ask(taught, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    check(call)


def test_a_named_call_is_of_that_function(taught: Live) -> None:
    for name in SCHEMAS:
        choice = ask(taught, tool_choice={"type": "function", "function": {"name": name}}).choices[0]
        assert [call.function.name for call in choice.message.tool_calls] == [name]
        check(choice.message.tool_calls[0])
        assert choice.finish_reason == "tool_calls"


def test_several_calls_and_a_stream(taught: Live) -> None:
    message = ask(taught, tool_choice="required").choices[0].message
    calls: dict[int, list[str]] = {}
    reason, num_deltas = None, 0
    for chunk in ask(taught, tool_choice="required", stream=True):
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        assert not choice.delta.content
        for delta in choice.delta.tool_calls or []:
            num_deltas += 1
            if delta.id:
                assert delta.index == len(calls)
                calls[delta.index] = [delta.function.name, ""]
            calls[delta.index][1] += delta.function.arguments
    assert [[c.function.name, c.function.arguments] for c in message.tool_calls] == list(calls.values())
    assert reason in ("tool_calls", "length")
    assert num_deltas > len(calls)
    assert len({c.id for c in message.tool_calls}) == len(calls)


def test_calls_and_results_go_back(taught: Live) -> None:
    message = ask(taught, tool_choice="required", parallel_tool_calls=False).choices[0].message
    history = [
        *HI,
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "A dog."},
    ]
    reply = ask(taught, messages=history, max_tokens=4)
    without = ask(taught, messages=[*HI, {"role": "assistant", "content": ""}], max_tokens=4)
    assert reply.usage.prompt_tokens > without.usage.prompt_tokens + 20


def test_none_leaves_the_tools_out(taught: Live) -> None:
    reply = ask(taught, tool_choice="none", max_tokens=4)
    assert reply.usage.prompt_tokens == ask(taught, tools=[], max_tokens=4).usage.prompt_tokens
    assert ask(taught, max_tokens=4).usage.prompt_tokens > reply.usage.prompt_tokens + 50
    assert reply.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name"),
        ({"tools": TOOLS[:1] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}],
            },
            "tools",
        ),
        ({"messages": [*HI, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        (
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "["}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_wrong_is_named(taught: Live, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(taught, **fields)
    assert caught.value.param == param


def test_a_model_without_tools_says_so(llama: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="knows no tools") as caught:
        ask(llama)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("stream", [False, True])
def test_auto_reads_the_calls_of_an_answer(scripted: Callable[..., Scripted], stream: bool) -> None:
    adapter = ScriptedAdapter()
    adapter.chat_template = template_of("hermes")
    said = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"camera": "yard"}}\n</tool_call>'
    rig = scripted(said, adapter=adapter)
    if not stream:
        choice = ask(rig.live, model="scripted").choices[0]
        assert choice.message.content == "I look."
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls[0].function.arguments == '{"camera": "yard"}'
        plain = ask(rig.live, model="scripted", tool_choice="none").choices[0]
        assert (plain.message.content, plain.finish_reason) == (said, "stop")
        return
    text, arguments, reason = "", "", None
    for chunk in ask(rig.live, model="scripted", stream=True):
        reason = chunk.choices[0].finish_reason
        text += chunk.choices[0].delta.content or ""
        arguments += "".join(c.function.arguments for c in chunk.choices[0].delta.tool_calls or [])
    assert (text, arguments) == ("I look.", '{"camera": "yard"}')
    assert reason == "tool_calls"

"""Function tools and log-probabilities of the Responses API, through the official client."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema_rs import is_valid

from tests.api.conftest import Live, Scripted, live_checkpoint
from tests.api.scripted import ScriptedAdapter
from tests.api.test_tools import SCHEMAS, teach, template_of

Start = Callable[..., Scripted]

TOOLS: list[Any] = [
    {"type": "function", "name": name, "description": f"To {name}.", "parameters": schema, "strict": True}
    for name, schema in SCHEMAS.items()
]
CALL = '<tool_call>\n{"name": "look", "arguments": {"camera": "yard"}}\n</tool_call>'
CALL_EVENTS = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]
LOGPROBS: Any = ["message.output_text.logprobs"]


@pytest.fixture(scope="module")
def hermes(checkpoint: Callable[[str], Path], tmp_path_factory: Any) -> Iterator[Live]:
    """The tiny text model with a template that knows tools."""
    path = tmp_path_factory.mktemp("responses") / "hermes"
    teach(checkpoint("llama"), path, "hermes")
    with live_checkpoint(path, max_model_len=2048) as server:
        yield server


@pytest.fixture
def calling(scripted: Start) -> Callable[[str], Scripted]:
    """A server whose model says what it is told, with a template that knows tools."""

    def start(reply: str) -> Scripted:
        adapter = ScriptedAdapter()
        adapter.chat_template = template_of("hermes")
        return scripted(reply, adapter=adapter, step_s=0.002)

    return start


def ask(live: Live, **fields: Any) -> Any:
    body: dict[str, Any] = {
        "model": live.service.model_name,
        "input": "What is there?",
        "max_output_tokens": 200,
        "tools": TOOLS,
        "extra_body": {"seed": 1},
    }
    return live.openai().responses.create(**body | fields)


def check_call(item: Any) -> None:
    assert (item.type, item.status) == ("function_call", "completed")
    assert item.id.startswith("fc_")
    assert item.call_id.startswith("call_")
    assert is_valid(SCHEMAS[item.name], json.loads(item.arguments))


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_made_and_fits(hermes: Live, parallel: bool) -> None:
    reply = ask(hermes, tool_choice="required", parallel_tool_calls=parallel, max_output_tokens=1500)
    assert reply.status == "completed"
    assert reply.output
    for item in reply.output:
        check_call(item)
    assert parallel or len(reply.output) == 1
    assert (reply.tool_choice, reply.parallel_tool_calls) == ("required", parallel)
    assert [tool.name for tool in reply.tools] == ["look", "wait"]
    assert reply.tools[0].parameters == SCHEMAS["look"]


def test_a_named_call_is_that_one(hermes: Live) -> None:
    for name in SCHEMAS:
        reply = ask(hermes, tool_choice={"type": "function", "name": name})
        (item,) = reply.output
        check_call(item)
        assert item.name == name
        assert reply.tool_choice.name == name


def test_none_leaves_the_tools_out(hermes: Live) -> None:
    without, with_none, with_tools = (
        ask(hermes, max_output_tokens=4, **fields).usage.input_tokens
        for fields in ({"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"})
    )
    assert without == with_none
    assert with_tools > without + 50


def test_a_call_is_streamed_as_it_comes_and_equals_the_whole(hermes: Live) -> None:
    fields: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    (whole,) = ask(hermes, **fields).output
    events = list(ask(hermes, stream=True, **fields))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1, "the arguments came in one piece"
    assert "".join(deltas) == whole.arguments
    (last,) = events[-1].response.output
    assert (last.name, last.arguments) == (whole.name, whole.arguments)


def test_the_whole_sequence_of_events(calling: Callable[[str], Scripted]) -> None:
    live = calling(f"I look.\n{CALL}\n{CALL.replace('yard', 'gate')}").live
    events = list(ask(live, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names: list[str] = []
    for event in events:
        if not (names and names[-1] == event.type):
            names.append(event.type)
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *CALL_EVENTS,
        *CALL_EVENTS,
        "response.completed",
    ]
    added = [e for e in events if e.type == "response.output_item.added"]
    done = [e for e in events if e.type == "response.output_item.done"]
    assert [e.output_index for e in added] == [e.output_index for e in done] == [0, 1, 2]
    assert [e.item.id for e in added] == [e.item.id for e in done]
    assert {e.item.status for e in added} == {"in_progress"}
    assert {e.item.status for e in done} == {"completed"}
    assert added[1].item.arguments == ""
    finished = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert [(e.item_id, e.arguments) for e in finished] == [
        (e.item.id, f'{{"camera": "{camera}"}}') for e, camera in zip(added[1:], ("yard", "gate"), strict=True)
    ]
    assert [item.model_dump() for item in events[-1].response.output] == [e.item.model_dump() for e in done]
    assert events[-1].response.output_text == "I look."


def test_the_clients_own_stream_reader_sees_the_calls(calling: Callable[[str], Scripted]) -> None:
    client = calling(CALL).live.openai()
    with client.responses.stream(model="scripted", input="hi", tools=TOOLS) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look", {"camera": "yard"})


def test_without_tools_a_call_is_text(calling: Callable[[str], Scripted]) -> None:
    live = calling(CALL).live
    for fields in ({"tools": []}, {"tool_choice": "none"}):
        reply = ask(live, **fields)
        assert [item.type for item in reply.output] == ["message"]
        assert reply.output_text == CALL


def test_a_call_whose_name_is_no_text_is_told_as_it_came(calling: Callable[[str], Scripted]) -> None:
    broken = CALL.replace("look", "\\ud800")
    live = calling(broken).live
    reply = ask(live)
    assert [item.type for item in reply.output] == ["message"]
    assert reply.output_text == broken.replace("\n", "").removesuffix("</tool_call>")
    assert list(ask(live, stream=True))[-1].response.output_text == reply.output_text


def test_what_asks_nothing_of_us_is_not_told_back(calling: Callable[[str], Scripted]) -> None:
    tool = TOOLS[0] | {"output_schema": "anything", "allowed_callers": ["direct"], "colour": 5}
    (told,) = ask(calling("Hey").live, tools=[tool]).tools
    assert told.model_dump(exclude_unset=True) == TOOLS[0]


def test_a_call_that_is_cut_is_incomplete(calling: Callable[[str], Scripted]) -> None:
    reply = ask(calling(CALL).live, max_output_tokens=len(CALL) - 20)
    assert reply.status == "incomplete"
    (item,) = reply.output
    assert (item.type, item.name, item.status) == ("function_call", "look", "incomplete")


def test_calls_and_results_go_back(hermes: Live) -> None:
    question = {"role": "user", "content": "What is there?"}
    call = ask(hermes, tool_choice="required", parallel_tool_calls=False).output[0]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "A dog, asleep in the sun."}
    told = ask(hermes, input=[question, call.model_dump(), result], max_output_tokens=4).usage.input_tokens
    silent = ask(hermes, input=[question, call.model_dump()], max_output_tokens=4).usage.input_tokens
    bare = ask(hermes, input=[question], max_output_tokens=4).usage.input_tokens
    assert bare < silent < told
    parts = [{"type": "input_text", "text": result["output"]}]
    as_parts = ask(hermes, input=[question, call.model_dump(), result | {"output": parts}], max_output_tokens=4)
    assert as_parts.usage.input_tokens == told


def test_calls_in_a_row_are_one_message(scripted: Start) -> None:
    adapter = ScriptedAdapter()
    adapter.chat_template = template_of("hermes")
    seen: list[Any] = []
    prepare = adapter.prepare

    def noting(messages: Any, images: Any, tools: Any = ()) -> Any:
        seen.extend(messages)
        return prepare(messages, images, tools)

    adapter.prepare = noting  # type: ignore[method-assign]
    calls = [{"type": "function_call", "call_id": f"c{i}", "name": "look", "arguments": "{}"} for i in range(2)]
    results = [{"type": "function_call_output", "call_id": f"c{i}", "output": f"dog {i}"} for i in range(2)]
    said: dict[str, Any] = {"role": "assistant", "content": "I look."}
    ask(scripted("Hey", adapter=adapter).live, input=[{"role": "user", "content": "hi"}, said, *calls, *results])
    assert [message["role"] for message in seen] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in seen[1]["tool_calls"]] == ["c0", "c1"]
    assert [(m["tool_call_id"], m["name"], m["content"]) for m in seen[2:]] == [
        ("c0", "look", "dog 0"),
        ("c1", "look", "dog 1"),
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "name": "fly"}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a", "defer_loading": True}]}, "tools[0].defer_loading"),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]},
            "input[0].arguments",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]}]},
            "input[0].output[0]",
        ),
    ],
)
def test_what_is_wrong_is_named(hermes: Live, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(hermes, **fields)
    assert caught.value.param == param


def test_a_model_without_tools_says_so(llama: Live) -> None:
    for fields in ({}, {"tools": [], "input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}):
        with pytest.raises(openai.BadRequestError, match="knows no tools"):
            ask(llama, **fields)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_come_with_their_text(llama: Live, stream: bool) -> None:
    asked: Any = {"tools": [], "include": LOGPROBS, "top_logprobs": 3, "max_output_tokens": 12, "temperature": 0.0}
    reply = ask(llama, stream=stream, **asked)
    events = list(reply) if stream else []
    if stream:
        reply = events[-1].response
    tokens = reply.output[0].content[0].logprobs
    assert len(tokens) == reply.usage.output_tokens == 12
    assert b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace").startswith(reply.output_text[:8])
    assert reply.top_logprobs == 3
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) < 1.0001
    if stream:
        streamed = [token for e in events if e.type == "response.output_text.delta" for token in e.logprobs]
        (done,) = (e for e in events if e.type == "response.output_text.done")
        assert [(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in tokens]
        assert [t.logprob for t in done.logprobs] == [t.logprob for t in tokens]
        assert [top.token for top in streamed[0].top_logprobs] == [top.token for top in tokens[0].top_logprobs]


def test_log_probabilities_of_the_chosen_alone_and_none_unasked(llama: Live) -> None:
    alone, unasked = (
        ask(llama, tools=[], max_output_tokens=4, **fields).output[0].content[0].logprobs
        for fields in ({"include": LOGPROBS}, {"top_logprobs": 0})
    )
    assert [token.top_logprobs for token in alone] == [[]] * 4
    assert unasked == []

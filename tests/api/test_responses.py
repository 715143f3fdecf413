"""The Responses API through the official client: answers, the whole sequence of events, items, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseIncompleteEvent, ResponseTextDeltaEvent

from tests.api.conftest import Live, Scripted
from tests.api.test_going_away import cancelled_within_a_step
from tests.api.test_images import data_uri

Start = Callable[..., Scripted]
PATH = "/v1/responses"
EVENTS_BEFORE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
EVENTS_AFTER = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
LONG = {"model": "scripted", "input": "hi", "ignore_eos": True, "max_output_tokens": 250}


def refusal(live: Live, **fields: Any) -> dict[str, Any]:
    """The error for a body with these fields."""
    with live.http() as http:
        reply = http.post(PATH, json={"model": "scripted", "input": "hi"} | fields)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a raw stream, whose `event:` lines must agree with their data."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_an_answer(scripted: Start) -> None:
    reply = scripted("Hello there.").live.openai().responses.create(model="scripted", input="hi")
    assert reply.output_text == "Hello there."
    assert (reply.object, reply.status, reply.model) == ("response", "completed", "scripted")
    assert reply.id.startswith("resp_")
    (item,) = reply.output
    assert item.type == "message"
    assert (item.role, item.status) == ("assistant", "completed")
    assert reply.usage
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (3, 12, 15)
    assert (reply.error, reply.incomplete_details) == (None, None)


def test_an_answer_that_is_cut_is_incomplete(scripted: Start) -> None:
    reply = scripted("Hello there.").live.openai().responses.create(model="scripted", input="hi", max_output_tokens=5)
    assert (reply.output_text, reply.status) == ("Hello", "incomplete")
    assert reply.incomplete_details
    assert reply.incomplete_details.reason == "max_output_tokens"
    (item,) = reply.output
    assert item.type == "message"
    assert item.status == "incomplete"


def test_the_whole_sequence_of_events(scripted: Start) -> None:
    live = scripted("Grüße, 世界!", step_s=0.004).live
    events = list(live.openai().responses.create(model="scripted", input="hi", stream=True))
    names = [event.type for event in events]
    deltas = [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)]
    assert names == [
        *EVENTS_BEFORE,
        *["response.output_text.delta"] * len(deltas),
        *EVENTS_AFTER,
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(deltas) == "Grüße, 世界!"
    assert len(deltas) > 5, "it came in one piece"
    last = events[-1]
    assert isinstance(last, ResponseCompletedEvent)
    assert last.response.output_text == "Grüße, 世界!"
    assert last.response.usage
    assert last.response.usage.output_tokens == len("Grüße, 世界!".encode())


def test_a_raw_stream_names_its_events_and_has_one_id(scripted: Start) -> None:
    with scripted("Hey").live.http() as http:
        reply = http.post(PATH, json={"model": "scripted", "input": "hi", "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply.text)
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert "[DONE]" not in reply.text


def test_a_stream_that_is_cut_ends_as_incomplete(scripted: Start) -> None:
    client = scripted("Hello").live.openai()
    events = list(client.responses.create(model="scripted", input="hi", stream=True, max_output_tokens=2))
    last = events[-1]
    assert isinstance(last, ResponseIncompleteEvent)
    assert last.response.status == "incomplete"
    assert last.response.output_text == "He"


def test_the_clients_own_stream_reader_and_the_async_client(scripted: Start) -> None:
    client = scripted("Hello there.").live.openai()
    with client.responses.stream(model="scripted", input="hi") as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output_text == "Hello there."


async def test_the_async_client(scripted: Start) -> None:
    async with scripted("Hello there.").live.async_openai() as client:
        assert (await client.responses.create(model="scripted", input="hi")).output_text == "Hello there."
        stream = await client.responses.create(model="scripted", input="hi", stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"


def test_items_roles_and_instructions(scripted: Start) -> None:
    rig = scripted("Hey")
    client = rig.live.openai()
    first = client.responses.create(model="scripted", input="hi")
    items: Any = [
        {"role": "developer", "content": "be kind"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "and brief"}]},
        {"role": "user", "content": "hi"},
        first.output[0].model_dump(),
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    ]
    reply = client.responses.create(model="scripted", input=items, instructions="listen")
    assert reply.instructions == "listen"
    assert reply.usage
    texts = ["listen", "be kind", "and brief", "hi", "Hey", "yes", "a\nb"]
    assert reply.usage.input_tokens == sum(len(text) + 1 for text in texts)
    prompts = [c.token_ids for step in rig.runner.steps for c in step.chunks if c.start == 0]
    assert rig.adapter.core.decode(list(prompts[-1])) == "".join(texts)


def test_images_are_strings_and_seen_in_order(scripted: Start) -> None:
    rig = scripted("a red one")
    content: Any = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": data_uri("red")},
        {"type": "input_image", "image_url": data_uri("blue"), "detail": "low"},
    ]
    reply = rig.live.openai().responses.create(model="scripted", input=[{"role": "user", "content": content}])
    assert reply.output_text == "a red one"
    assert [i.getpixel((0, 0)) for i in rig.adapter.seen_images] == [(255, 0, 0), (0, 0, 255)]


def test_sampling_fields_reach_the_engine_and_come_back(scripted: Start) -> None:
    rig = scripted("Hey")
    reply = rig.live.openai().responses.create(
        model="scripted",
        input="hi",
        temperature=0.25,
        top_p=0.5,
        max_output_tokens=9,
        metadata={"camera": "yard"},
        extra_body={"top_k": 3, "seed": 7, "stop": "x", "ignore_eos": True},
    )
    sampling = rig.runner.steps[0].chunks[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.25, 0.5, 3, 7)
    assert (sampling.stop, sampling.max_tokens, sampling.ignore_eos) == (("x",), 9, True)
    assert (reply.temperature, reply.top_p, reply.max_output_tokens) == (0.25, 0.5, 9)
    assert reply.metadata == {"camera": "yard"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.type"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": "x" * 300}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"text": "untyped"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": {"url": "data:,"}}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "input[0].content[0]",
        ),
    ],
)
def test_a_bad_field_is_a_400_with_its_name(scripted: Start, fields: dict[str, Any], param: str) -> None:
    error = refusal(scripted("Hey").live, **fields)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_what_needs_a_kept_response_says_so(scripted: Start) -> None:
    error = refusal(scripted("Hey").live, previous_response_id="resp_1")
    assert error["code"] == "unsupported_parameter"
    assert "keeps no responses; send the whole conversation in input" in error["message"]


def test_values_that_change_nothing_are_taken(scripted: Start) -> None:
    reply = (
        scripted("Hey")
        .live.openai()
        .responses.create(
            model="scripted",
            input="hi",
            store=False,
            background=False,
            previous_response_id=None,
            include=["reasoning.encrypted_content"],
            tools=[],
            tool_choice="auto",
            truncation="disabled",
            reasoning={"effort": "none"},
            text={"format": {"type": "text"}},
            parallel_tool_calls=False,
            user="someone",
        )
    )
    assert reply.output_text == "Hey"
    assert reply.model_extra
    assert reply.model_extra["store"] is False


def test_an_error_in_the_middle_of_a_stream_ends_it_as_failed(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "stream": True}) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        text = ""
        while "output_text.delta" not in (line := next(lines)):
            text += line + "\n"
        rig.runner.fail_requests = "its logits are not numbers"
        text += line + "\n" + "\n".join(lines)
    events = events_of(text)
    error, failed = events[-2:]
    assert (error["type"], error["code"], error["message"]) == (
        "error",
        "generation_failed",
        "its logits are not numbers",
    )
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == "its logits are not numbers"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_request_along(scripted: Start, stream: bool) -> None:
    rig = scripted("abcdef", step_s=0.01)
    with rig.live.http() as http:
        if stream:
            with http.stream("POST", PATH, json={**LONG, "stream": True}) as reply:
                lines = reply.iter_lines()
                while "output_text.delta" not in next(lines):
                    pass
        else:
            with pytest.raises(openai.APITimeoutError):
                rig.live.openai().with_options(timeout=0.3).responses.create(
                    model="scripted", input="hi", max_output_tokens=250, extra_body={"ignore_eos": True}
                )
    assert cancelled_within_a_step(rig) < 200


def test_nothing_of_an_image_is_echoed(scripted: Start) -> None:
    uri = "data:image/png;base64," + "QUJD" * 40
    content = [{"type": "input_image", "image_url": uri}]
    assert "QUJD" not in json.dumps(refusal(scripted("Hey").live, input=[{"role": "user", "content": content}]))


def test_a_real_model_answers_alike_streamed_and_whole(vision: Live) -> None:
    client = vision.openai()
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": data_uri("red")}]
    question: dict[str, Any] = {
        "model": "tiny",
        "input": [{"role": "user", "content": content}],
        "temperature": 0.0,
        "max_output_tokens": 24,
    }
    whole = client.responses.create(**question)
    events = client.responses.create(**question, stream=True)
    assert "".join(e.delta for e in events if isinstance(e, ResponseTextDeltaEvent)) == whole.output_text
    assert whole.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_the_form_of_an_answer_is_kept(llama: Live, stream: bool) -> None:
    schema = {"type": "object", "properties": {"people": {"type": "integer", "maximum": 9}}, "required": ["people"]}
    form: Any = {"format": {"type": "json_schema", "name": "count", "schema": schema | {"additionalProperties": False}}}
    reply: Any = llama.openai().responses.create(
        model="tiny", input="How many?", text=form, max_output_tokens=60, temperature=0.0, stream=stream
    )
    if stream:
        reply = list(reply)[-1].response
    assert reply.text.format.type == "json_schema"
    assert reply.text.format.schema_ == form["format"]["schema"]
    assert isinstance(json.loads(reply.output_text)["people"], int)

"""Raw prompts: completions through the official client, and what a prompt is in tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.api.conftest import Live, Scripted
from tests.api.scripted import EOS, IMAGE
from tests.api.test_going_away import cancelled_within_a_step

Start = Callable[..., Scripted]
PATH = "/v1/completions"


def post(live: Live, path: str, **body: Any) -> httpx.Response:
    with live.http() as http:
        return http.post(path, json=body)


def test_a_completion(scripted: Start) -> None:
    rig = scripted("Hello there, you.")
    reply = rig.live.openai().completions.create(model="scripted", prompt="Say hello: ", max_tokens=11)
    (choice,) = reply.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("Hello there", "length", 0)
    assert (reply.object, reply.model) == ("text_completion", "scripted")
    assert reply.usage
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (11, 11)
    assert rig.adapter.core.decode(list(rig.runner.steps[0].chunks[0].token_ids)) == "Say hello: "


def test_sixteen_tokens_unless_asked(scripted: Start) -> None:
    reply = scripted("0123456789abcdefXYZ").live.openai().completions.create(model="scripted", prompt="x")
    assert reply.choices[0].text == "0123456789abcdef"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_choices_in_order(scripted: Start, stream: bool) -> None:
    live = scripted("Hey").live
    prompts = ["a", "bb", "ccc"]
    texts, reasons = ["", "", ""], [None, None, None]
    if stream:
        chunks = list(
            live.openai().completions.create(
                model="scripted", prompt=prompts, stream=True, stream_options={"include_usage": True}
            )
        )
        usage = chunks.pop().usage
        for chunk in chunks:
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]  # type: ignore[call-overload]
        assert len({chunk.id for chunk in chunks}) == 1
    else:
        reply = live.openai().completions.create(model="scripted", prompt=prompts)
        texts, usage = [choice.text for choice in reply.choices], reply.usage
        reasons = [choice.finish_reason for choice in reply.choices]  # type: ignore[misc]
    assert texts == ["Hey"] * 3
    assert reasons == ["stop"] * 3
    assert usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (6, 9)


def test_n_choices_of_each_prompt(scripted: Start) -> None:
    reply = scripted("Hey").live.openai().completions.create(model="scripted", prompt=["a", "b"], n=2)
    assert [(choice.index, choice.text) for choice in reply.choices] == [(i, "Hey") for i in range(4)]


def test_token_ids_are_prompts_too(scripted: Start) -> None:
    rig = scripted("Hey")
    client = rig.live.openai()
    ids = rig.adapter.core.encode("abc").ids
    assert client.completions.create(model="scripted", prompt=ids).usage.prompt_tokens == 3  # type: ignore[union-attr]
    both = client.completions.create(model="scripted", prompt=[ids, ids[:1]])
    assert [choice.index for choice in both.choices] == [0, 1]
    assert rig.runner.steps[0].chunks[0].token_ids == tuple(ids)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["x", ""]}, "prompt[1]"),
        ({"prompt": [0, 999_999]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": f"a{IMAGE}"}, "prompt"),
        ({"prompt": "x" * 300}, "prompt"),
        ({"prompt": "x" * 3000}, "prompt"),
        ({"prompt": "x" * 250, "max_tokens": 16}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_a_bad_field_is_a_400_with_its_name(scripted: Start, fields: dict[str, Any], param: str) -> None:
    reply = post(scripted("Hey").live, PATH, **{"model": "scripted", "prompt": "x"} | fields)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    stream = rig.live.openai().completions.create(
        model="scripted", prompt=["x", "y"], stream=True, max_tokens=200, extra_body={"ignore_eos": True}
    )
    next(stream)
    rig.runner.fail_requests = "its logits are not numbers"
    with pytest.raises(openai.APIError, match="not numbers"):
        list(stream)
    rig.live.wait_until(lambda: rig.live.service.engine.stats().num_blocks_used == 0)


def test_a_client_that_leaves_takes_all_its_prompts_along(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    body = {"model": "scripted", "prompt": "x", "max_tokens": 250, "ignore_eos": True, "stream": True}
    with rig.live.http() as http, http.stream("POST", PATH, json=body) as reply:
        next(reply.iter_lines())
    assert cancelled_within_a_step(rig) < 200


def test_tokenize_and_back(scripted: Start) -> None:
    rig = scripted("Hey")
    reply = post(rig.live, "/tokenize", model="scripted", prompt="héllo", return_token_strs=True).json()
    assert reply["tokens"] == rig.adapter.core.encode("héllo").ids
    assert (reply["count"], reply["max_model_len"], len(reply["token_strs"])) == (6, 256, 6)
    assert post(rig.live, "/detokenize", tokens=reply["tokens"]).json() == {"prompt": "héllo"}


def test_control_tokens_of_a_raw_prompt_are_such(scripted: Start) -> None:
    rig = scripted("Hey")
    (token,) = post(rig.live, "/tokenize", prompt=EOS).json()["tokens"]
    assert token == rig.adapter.id_of(EOS)
    assert post(rig.live, "/detokenize", tokens=[token]).json() == {"prompt": EOS}


def test_messages_are_tokenized_as_a_chat_would_have_them(scripted: Start) -> None:
    rig = scripted("Hey")
    messages: Any = [{"role": "user", "content": "hi"}]
    reply = post(rig.live, "/tokenize", messages=messages).json()
    asked = rig.live.openai().chat.completions.create(model="scripted", messages=messages)
    assert asked.usage
    assert reply["count"] == asked.usage.prompt_tokens
    assert reply["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
    ],
)
def test_what_cannot_be_tokenized_is_a_400_with_its_name(
    scripted: Start, path: str, body: dict[str, Any], param: str
) -> None:
    reply = post(scripted("Hey").live, path, **body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert post(scripted("Hey").live, path, **body | {"model": "other"}).status_code in (400, 404)


def test_a_real_model_continues_a_text_as_its_token_ids(llama: Live) -> None:
    client = llama.openai()
    with llama.http() as http:
        ids = http.post("/tokenize", json={"prompt": "What do you see?"}).json()["tokens"]
    by_text, by_ids = (
        client.completions.create(model="tiny", prompt=prompt, temperature=0.0, max_tokens=20)
        for prompt in ("What do you see?", ids)
    )
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert len(by_text.choices[0].text) > 8

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
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
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


def test_an_echo_begins_with_the_prompt(scripted: Start) -> None:
    rig = scripted("Hey")
    client = rig.live.openai()
    ids = rig.adapter.core.encode("abc").ids
    for prompt in ("abc", ids):
        reply = client.completions.create(model="scripted", prompt=prompt, echo=True)
        assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("abcHey", "stop")
        assert reply.usage
        assert reply.usage.completion_tokens == 3
        chunks = list(client.completions.create(model="scripted", prompt=prompt, echo=True, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "abcHey"
        alone = client.completions.create(model="scripted", prompt=[prompt], echo=True, max_tokens=0)  # type: ignore[list-item]
        assert (alone.choices[0].text, alone.choices[0].finish_reason) == ("abc", "length")
        assert alone.usage
        assert alone.usage.completion_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "fields", "reason"),
    [("", {}, "stop"), ("Hey", {"stop": ["Hey"]}, "stop"), ("", {"max_tokens": 0}, "length")],
    ids=["ends at once", "stops at once", "prompt alone"],
)
def test_an_echo_needs_no_answer(scripted: Start, said: str, fields: Any, reason: str, stream: bool) -> None:
    reply: Any = (
        scripted(said)
        .live.openai()
        .completions.create(model="scripted", prompt=["abc", "de"], echo=True, stream=stream, **fields)
    )
    texts, reasons = ["", ""], [None, None]
    for one in reply if stream else [reply]:
        for choice in one.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert (texts, reasons) == (["abc", "de"], [reason] * 2)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_prompt_and_answer(llama: Live, stream: bool) -> None:
    prompt = "The engine spends a budget of tokens in every step. Große Bäume. " * 3
    reply: Any = llama.openai().completions.create(
        model="tiny", prompt=prompt, echo=True, logprobs=2, max_tokens=6, temperature=0.0, stream=stream
    )
    told: dict[str, list[Any]] = {"text_offset": [], "tokens": [], "token_logprobs": [], "top_logprobs": []}
    text = ""
    for one in reply if stream else [reply]:
        text += one.choices[0].text
        for name, values in told.items():
            values += getattr(one.choices[0].logprobs, name) if one.choices[0].logprobs else []
    with llama.http() as http:
        num_prompt = http.post("/tokenize", json={"prompt": prompt}).json()["count"]
    assert {len(values) for values in told.values()} == {num_prompt + 6}
    assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
    assert text.startswith(prompt)
    for offset, name in zip(told["text_offset"], told["tokens"], strict=True):
        assert name.startswith("bytes:") or text.startswith(name, offset)
    for name, logprob, top in list(zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True))[1:]:
        assert top[name] == logprob <= 0.0
        assert 2 <= len(top) <= 3
    greedy = told["token_logprobs"][num_prompt:]
    assert greedy == [max(top.values()) for top in told["top_logprobs"][num_prompt:]]


def test_what_a_harness_of_benchmarks_asks(llama: Live) -> None:
    """A continuation's log-probability by `echo` and `max_tokens: 0`, of token ids, in batches."""
    client, context, endings = llama.openai(), "What do you see? ", ("A dog.", "Two people.")
    with llama.http() as http:
        ids = [http.post("/tokenize", json={"prompt": context + end}).json()["tokens"] for end in endings]
    body: dict[str, Any] = {"model": "tiny", "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
    reply = client.completions.create(prompt=ids, max_tokens=0, **body)
    longer = client.completions.create(prompt=ids, max_tokens=1, **body)
    assert reply.usage
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (sum(map(len, ids)), 0)
    for choice, one_more, token_ids, end in zip(reply.choices, longer.choices, ids, endings, strict=True):
        assert choice.text == context + end
        assert choice.logprobs
        assert one_more.logprobs
        assert len(choice.logprobs.tokens or ()) == len(token_ids)
        assert choice.logprobs.token_logprobs == (one_more.logprobs.token_logprobs or [])[:-1]
        assert len(choice.logprobs.top_logprobs[-1]) <= 2  # type: ignore[index]


def test_log_probabilities_of_the_answer_alone(llama: Live) -> None:
    reply = llama.openai().completions.create(model="tiny", prompt="What is", logprobs=0, max_tokens=4, temperature=0.0)
    told = reply.choices[0].logprobs
    assert told
    assert [len(top) for top in told.top_logprobs or ()] == [1] * 4
    assert told.text_offset
    assert told.text_offset[0] == 0

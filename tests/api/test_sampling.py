"""Sampling fields on a live server: choices, log-probabilities, bias, penalties, and that nobody notices another's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.conftest import Live

HI: list[Any] = [{"role": "user", "content": "Describe the image, where a dog waits beside a bicycle."}]


def ask(live: Live, **fields: Any) -> Any:
    return live.openai().chat.completions.create(**{"model": "tiny", "messages": HI, "max_tokens": 12} | fields)


def texts(reply: Any) -> list[str]:
    return [choice.message.content for choice in reply.choices]


def streamed(live: Live, num: int, **fields: Any) -> tuple[list[str], list[Any], list[Any]]:
    """Texts, finish reasons and log-probabilities of a streamed reply with `num` choices."""
    said, reasons, logprobs = [""] * num, [None] * num, [[] for _ in range(num)]
    for chunk in ask(live, stream=True, **fields):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            logprobs[choice.index] += choice.logprobs.content if choice.logprobs else []
    return said, reasons, logprobs


def test_choices_are_what_single_requests_with_their_seeds_are(llama: Live) -> None:
    reply = ask(llama, n=3, seed=5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert texts(reply) == [texts(ask(llama, seed=seed))[0] for seed in (5, 6, 7)]
    assert len(set(texts(reply))) == 3
    assert reply.usage.completion_tokens == 36
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 36
    assert len(set(texts(ask(llama, n=4)))) == 4, "without a seed, too, each draws by itself"


def test_choices_in_a_stream(llama: Live) -> None:
    said, reasons, _ = streamed(llama, 3, n=3, seed=5)
    assert said == texts(ask(llama, n=3, seed=5))
    assert reasons == ["length"] * 3


def test_choices_share_the_prompt(llama: Live) -> None:
    stats = llama.service.engine.stats
    messages = [{"role": "user", "content": "A prompt that nobody has sent before: " + "0123456789 " * 12}]
    before = stats()
    num_prompt = ask(llama, n=4, messages=messages, max_tokens=2).usage.prompt_tokens
    hits = stats().prefix_hits_total - before.prefix_hits_total
    # All full blocks of the prompt, for each choice but the first; the start may be known from other tests.
    assert hits >= 3 * (num_prompt - 16)


def test_logprobs_are_those_of_the_tokens_sent(llama: Live) -> None:
    reply = ask(llama, logprobs=True, top_logprobs=3, temperature=0)
    content = reply.choices[0].logprobs.content
    assert len(content) == 12
    assert bytes(b for token in content for b in token.bytes).decode(errors="replace") == texts(reply)[0]
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0, "greedy takes the likeliest"
        assert token.token == token.top_logprobs[0].token
        assert sorted((t.logprob for t in token.top_logprobs), reverse=True) == [t.logprob for t in token.top_logprobs]
    assert texts(ask(llama, temperature=0)) == texts(reply)
    said, _, logprobs = streamed(llama, 1, logprobs=True, top_logprobs=3, temperature=0)
    assert said == texts(reply)
    assert [t.token for t in logprobs[0]] == [t.token for t in content]
    bare = ask(llama, logprobs=True, temperature=0).choices[0].logprobs.content
    assert [token.top_logprobs for token in bare] == [[]] * 12
    assert ask(llama).choices[0].logprobs is None


def test_a_bias_bans_and_forces(llama: Live) -> None:
    core = llama.service.tokenizer
    forced = core.token_to_id("a")
    assert texts(ask(llama, logit_bias={str(forced): 100}, max_tokens=5)) == ["aaaaa"]
    greedy = ask(llama, temperature=0, logprobs=True).choices[0].logprobs.content[0]
    banned = core.encode(greedy.token, add_special_tokens=False).ids
    biased = ask(llama, temperature=0, logprobs=True, logit_bias={str(i): -100 for i in banned})
    assert biased.choices[0].logprobs.content[0].token != greedy.token


@pytest.mark.parametrize(
    "fields",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"extra_body": {"repetition_penalty": 2.0}}],
)
def test_penalties_change_the_answer(llama: Live, fields: dict[str, Any]) -> None:
    plain, penalized = (texts(ask(llama, temperature=0, max_tokens=40, **more)) for more in ({}, fields))
    assert plain != penalized
    assert penalized == texts(ask(llama, temperature=0, max_tokens=40, **fields))


async def test_settings_stay_with_their_request(llama: Live) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "frequency_penalty": 1.5},
        {"seed": 3, "extra_body": {"min_p": 0.2}},
        {"temperature": 0, "logprobs": True, "top_logprobs": 2},
        {"seed": 4, "presence_penalty": -1.0, "extra_body": {"repetition_penalty": 1.3}},
        {"seed": 5, "extra_body": {"structured_outputs": {"regex": "[a-z ]{30}"}}},
    ]
    alone = [texts(ask(llama, **kind)) for kind in kinds]
    async with llama.async_openai() as client:
        together = await asyncio.gather(
            *(client.chat.completions.create(model="tiny", messages=HI, max_tokens=12, **kind) for kind in kinds)
        )
    assert [texts(reply) for reply in together] == alone
    assert len({alone[0][0], alone[1][0], alone[2][0], alone[4][0], alone[5][0]}) == 5

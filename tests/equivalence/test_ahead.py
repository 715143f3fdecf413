"""Steps that are made while one is in flight change no token: their input stays where the step before sampled it."""

from __future__ import annotations

import pytest

from backend.sched.policy import POLICIES
from backend.types.step import AWAITED_TOKEN_ID
from tests.equivalence.harness import (
    TEXT_MODELS,
    TEXT_PROMPTS,
    Adapters,
    Answers,
    Outcome,
    assert_matches,
    generate,
    limits,
    prompts_of,
    request_of,
    tight_limits,
)
from tests.tape import TapeRecorder


def num_awaited(outcome: Outcome) -> int:
    """Tokens that were computed before anybody knew them."""
    return sum(chunk.token_ids[0] == AWAITED_TOKEN_ID for step in outcome.steps for chunk in step.chunks)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", TEXT_MODELS)
def test_ahead_equals_transformers(family: str, policy: str, adapter: Adapters, expected: Answers) -> None:
    """Beside prompt chunks and images; late arrivals among them."""
    model = adapter(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    outcome = generate(model, requests, limits(7), policy=policy, arrivals=(0, 2, 4, 12), ahead=True)
    assert num_awaited(outcome) > 10
    assert_matches(expected(family), outcome.tokens)


@pytest.mark.parametrize("caching", [False, True])
def test_ahead_with_too_few_blocks(caching: bool, adapter: Adapters, expected: Answers) -> None:
    """Whoever runs short of blocks is waited for: nobody is thrown out while a token of theirs is on its way."""
    model = adapter("llama")
    requests = [request_of(model, p) for p in prompts_of("llama")]
    outcome = generate(model, requests, tight_limits(requests, enable_prefix_caching=caching), ahead=True)
    assert outcome.stats
    assert outcome.stats.num_preemptions_total
    assert num_awaited(outcome)
    assert_matches(expected("llama"), outcome.tokens)


def test_ahead_draws_the_same_tokens(adapter: Adapters) -> None:
    """Drawn ones, with log-probabilities beside them; penalties, which need the words before, make a step wait."""
    model = adapter("llama")
    rules = [{"seed": 3}, {"seed": 4, "num_logprobs": 2}, {"seed": 5, "top_p": 0.9, "repetition_penalty": 1.3}]
    requests = [
        request_of(model, prompt, temperature=1.0, max_tokens=5 + 5 * i, **rule)
        for i, (prompt, rule) in enumerate(zip(TEXT_PROMPTS, rules, strict=False))
    ]
    apart = generate(model, requests, limits(16))
    for served in (requests, requests[:2]):
        outcome = generate(model, served, limits(16), ahead=True)
        assert outcome.tokens == {r.request_id: apart.tokens[r.request_id] for r in served}
    assert num_awaited(outcome) > 5


def test_ahead_by_graphs(adapter: Adapters, expected: Answers) -> None:
    """Recorded steps are given their tokens as any other."""
    model, recorder = adapter("llama"), TapeRecorder()
    requests = [request_of(model, p) for p in prompts_of("llama")]
    outcome = generate(model, requests, limits(16), recorder=recorder, ahead=True)
    assert num_awaited(outcome) > 10
    assert_matches(expected("llama"), outcome.tokens)

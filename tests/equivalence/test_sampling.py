"""Penalties, grammars and log-probabilities: chunked, batched and preempted give what an undisturbed request gives."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from backend.conversation import Constraint
from backend.models.adapter import ModelAdapter
from backend.structured import GrammarCompiler, TokenGrammar, Vocabulary
from backend.types.request import Request
from backend.types.result import TokenLogprobs
from tests.equivalence.harness import TEXT_PROMPTS, Adapters, generate, limits, request_of, tight_limits

SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 50}


def grammar_of(adapter: ModelAdapter, kind: Any, text: str) -> TokenGrammar:
    compiler = GrammarCompiler(Vocabulary(adapter.tokenizer, adapter.spec.eos_token_ids))
    try:
        return asyncio.run(compiler.compile(Constraint(kind, text, "it")))
    finally:
        compiler.close()


@pytest.fixture(scope="module")
def requests(adapter: Adapters) -> tuple[Request, ...]:
    """One request of every kind, none of which ends before its last token."""
    model = adapter("llama")
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.7, "presence_penalty": 0.5, "temperature": 0.8, "seed": 4},
        {"grammar": grammar_of(model, "json_schema", json.dumps(SCHEMA)), "frequency_penalty": 1.0},
        {"grammar": grammar_of(model, "regex", "[a-z]{200}"), "temperature": 1.0, "min_p": 0.05, "seed": 5},
        {"num_logprobs": 2, "logit_bias": ((40, 3.0), (41, -100.0))},
    ]
    return tuple(request_of(model, p, **kind) for p, kind in zip(TEXT_PROMPTS, kinds, strict=True))


@pytest.fixture(scope="module")
def undisturbed(adapter: Adapters, requests: tuple[Request, ...]) -> dict[str, list[int]]:
    """Each alone, its prompt in one piece, its grammar fresh."""
    return {
        name: tokens
        for request in requests
        for name, tokens in generate(adapter("llama"), [fresh(request)], limits(1024)).tokens.items()
    }


def fresh(request: Request) -> Request:
    """The same request with a grammar at its beginning."""
    grammar = request.sampling.grammar
    if isinstance(grammar, TokenGrammar):
        return replace(request, sampling=replace(request.sampling, grammar=grammar.fork()))
    return request


def test_the_rules_show(adapter: Adapters, requests: tuple[Request, ...], undisturbed: dict[str, list[int]]) -> None:
    """The premise: every one of these answers would be another one without its rules."""
    plain = generate(adapter("llama"), [request_of(adapter("llama"), p) for p in TEXT_PROMPTS], limits(1024)).tokens
    assert all(plain[name] != tokens for name, tokens in undisturbed.items())
    texts = [str(adapter("llama").tokenizer.decode(undisturbed[r.request_id])) for r in requests]
    assert set(texts[1]) <= set("[0123456789, \n")
    assert texts[2].isalpha()


@pytest.mark.parametrize("budget", [4, 7, 64])
def test_chunked_and_batched_equals_alone(
    adapter: Adapters, requests: tuple[Request, ...], undisturbed: dict[str, list[int]], budget: int
) -> None:
    outcome = generate(adapter("llama"), [fresh(r) for r in requests], limits(budget), arrivals=(0, 3, 5, 9))
    assert outcome.tokens == undisturbed


def test_preempted_equals_undisturbed(
    adapter: Adapters, requests: tuple[Request, ...], undisturbed: dict[str, list[int]]
) -> None:
    requests = tuple(fresh(r) for r in requests)
    outcome = generate(adapter("llama"), requests, tight_limits(requests))
    assert outcome.stats
    assert outcome.stats.num_preemptions_total > 0
    assert outcome.tokens == undisturbed


def test_steps_can_be_computed_again(adapter: Adapters, requests: tuple[Request, ...]) -> None:
    """A grammar's state follows the history it is shown, not the calls before."""
    grammar = requests[1].sampling.grammar
    assert isinstance(grammar, TokenGrammar)
    ids = adapter("llama").tokenizer.encode("[1,23", add_special_tokens=False)
    masks = [grammar.fork().mask(tuple(ids[:n])) for n in range(len(ids))]
    one = grammar.fork()
    for n in (0, 2, 1, 1, 0, 2):
        assert one.mask(tuple(ids[:n])) == masks[n]
    with pytest.raises(ValueError, match=r"\S"):
        one.mask(tuple(ids[1:]))
    assert one.mask(tuple(ids[:2])) == masks[2], "it recovers from a history that was refused"


def test_only_those_who_ask_get_logprobs_and_history(adapter: Adapters, requests: tuple[Request, ...]) -> None:
    steps = generate(adapter("llama"), [fresh(r) for r in requests], limits(64)).steps
    for chunk in (c for step in steps for c in step.chunks):
        needs = chunk.samples and chunk.sampling.needs_history
        assert bool(chunk.prompt) == needs
        assert len(chunk.history) == (chunk.sample_index if needs else 0)
    assert TokenLogprobs(1, 0.0).top == ()

"""Guesses change no token: not greedy ones, not drawn ones, under no policy, with preemption and a prefix cache.

The guesses are not looked up, for tiny models say nothing twice: some are taken from the answer, some are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from backend.runtime import flight, runner
from backend.runtime.batch import StepTensors, build_step_tensors
from backend.sched.policy import POLICIES
from backend.sched.speculator import Speculator
from backend.types.step import Chunk
from tests.equivalence.harness import (
    TEXT_MODELS,
    Adapters,
    Answers,
    Expected,
    Outcome,
    assert_matches,
    generate,
    limits,
    prompts_of,
    request_of,
    tight_limits,
)


def tokens_of(answers: dict[str, Expected]) -> dict[str, tuple[int, ...]]:
    return {name: answer.token_ids for name, answer in answers.items()}


def assert_mixed(outcome: Outcome) -> None:
    """Some guesses came true and some did not, or the tests would prove little."""
    assert outcome.num_accepted >= 5
    assert outcome.num_drafts - outcome.num_accepted >= 5


@pytest.mark.parametrize("budget", [7, 64])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", TEXT_MODELS)
def test_guessed_equals_transformers(
    family: str, policy: str, budget: int, adapter: Adapters, expected: Answers
) -> None:
    """Guesses beside prompt chunks and images, late arrivals among them."""
    model, answers = adapter(family), expected(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    outcome = generate(model, requests, limits(budget), policy=policy, arrivals=(0, 2, 4, 12), truth=tokens_of(answers))
    assert_mixed(outcome)
    if policy in ("stall-free", "split-fuse"):
        assert any(step.num_draft_tokens and step.num_prefill_tokens for step in outcome.steps)
    assert_matches(answers, outcome.tokens)


@pytest.mark.parametrize("family", TEXT_MODELS)
def test_guessed_with_reference_attention(family: str, adapter: Adapters, expected: Answers) -> None:
    model, answers = adapter(family), expected(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    outcome = generate(model, requests, limits(16), attention="reference", truth=tokens_of(answers))
    assert_mixed(outcome)
    assert_matches(answers, outcome.tokens)


@pytest.mark.parametrize("family", TEXT_MODELS)
def test_guessed_and_preempted(family: str, adapter: Adapters, expected: Answers) -> None:
    model, answers = adapter(family), expected(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    tight = tight_limits(requests, enable_prefix_caching=True)
    outcome = generate(model, requests, tight, truth=tokens_of(answers))
    assert outcome.stats is not None
    assert outcome.stats.num_preemptions_total > 0
    assert_mixed(outcome)
    assert_matches(answers, outcome.tokens)


def test_what_guesses_left_is_never_shared(adapter: Adapters, expected: Answers) -> None:
    """Every prompt comes again behind its whole answer: what is in the prefix cache has to be that answer."""
    model, answers = adapter("llama"), expected("llama")
    requests = [request_of(model, p) for p in prompts_of("llama")]
    again = []
    for request in requests:
        token_ids = (*request.prompt.token_ids, *answers[request.request_id].token_ids[:16])
        prompt = replace(request.prompt, token_ids=token_ids, positions=(range(len(token_ids)),))
        sampling = replace(request.sampling, max_tokens=8)
        again.append(replace(request, request_id=f"{request.request_id} again", prompt=prompt, sampling=sampling))
    truth = tokens_of(answers) | {f"{name} again": answer.token_ids[16:] for name, answer in answers.items()}
    late = (0,) * len(requests) + (200,) * len(requests)
    caching = limits(16, enable_prefix_caching=True)
    outcome = generate(model, requests + again, caching, arrivals=late, truth=truth)
    assert outcome.stats is not None
    assert outcome.stats.prefix_hits_total > 0.5 * sum(len(request.prompt.token_ids) for request in again)
    for name, answer in answers.items():
        assert outcome.tokens[f"{name} again"] == list(answer.token_ids[16:]), name


@pytest.mark.parametrize("family", TEXT_MODELS)
def test_guessed_draws_are_the_same_draws(family: str, adapter: Adapters) -> None:
    """Token by token, not only in distribution: each is drawn by its place in the answer."""
    model = adapter(family)
    drawing: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 11}
    requests = [request_of(model, p, **drawing) for p in prompts_of(family)]
    plain = generate(model, requests, limits(16)).tokens
    guessed = generate(model, requests, limits(16), truth=plain)
    assert_mixed(guessed)
    assert guessed.tokens == plain


def test_looked_up_guesses_come_true(adapter: Adapters) -> None:
    """The real speculator: drawn from so flat a prompt that the answer repeats itself, and the same without it."""
    model = adapter("llama")
    # A bias so strong that two tokens alternate with what the model likes.
    bias: dict[str, Any] = {"logit_bias": tuple((token_id, 100.0) for token_id in (40, 41, 42)), "max_tokens": 24}
    requests = [request_of(model, p, **bias) for p in prompts_of("llama")]
    plain = generate(model, requests, limits(64))
    looked_up = generate(model, requests, limits(64, num_speculative_tokens=4))
    assert looked_up.num_accepted >= 10
    assert len(looked_up.steps) < len(plain.steps)
    assert looked_up.tokens == plain.tokens


def accept_one_too_many(drafts: Sequence[int], token_ids: Sequence[int]) -> int:
    return min(len(token_ids), right_num_kept(drafts, token_ids) + 1)


right_num_kept = flight.num_kept


def rows_one_early(tensors: StepTensors) -> StepTensors:
    """The rows of guesses are those of the tokens before."""
    has_guesses = any(chunk.num_drafts for chunk in tensors.sampling_chunks)
    return replace(tensors, sample_rows=(tensors.sample_rows - int(has_guesses)).clamp(min=0))


def guesses_do_not_see_one_another(tensors: StepTensors) -> StepTensors:
    """The last guess is written over by the one before."""
    slots = tensors.attention.slots.clone()
    for chunk, end in zip(tensors.sampling_chunks, tensors.attention.query_starts[1:], strict=False):
        if chunk.num_drafts > 1:
            slots[end - 1] = slots[end - 2]
    return replace(tensors, attention=replace(tensors.attention, slots=slots))


@pytest.mark.parametrize("fault", [rows_one_early, guesses_do_not_see_one_another])
def test_a_fault_in_the_rows_is_seen(
    fault: Callable[[StepTensors], StepTensors],
    adapter: Adapters,
    expected: Answers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(chunks: Sequence[Chunk], **options: Any) -> StepTensors:
        return fault(build_step_tensors(chunks, **options))

    monkeypatch.setattr(runner, "build_step_tensors", faulty)
    with pytest.raises(AssertionError, match="diverges"):
        check(adapter, expected)


def test_a_guess_kept_too_many_is_seen(adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "num_kept", accept_one_too_many)
    with pytest.raises(AssertionError, match="diverges"):
        check(adapter, expected)


def check(adapter: Adapters, expected: Answers) -> None:
    model, answers = adapter("llama"), expected("llama")
    requests = [request_of(model, p) for p in prompts_of("llama")]
    assert_matches(answers, generate(model, requests, limits(64), truth=tokens_of(answers)).tokens)


def test_whose_next_token_needs_the_words_before_is_not_guessed(adapter: Adapters) -> None:
    model = adapter("llama")
    bias = tuple((token_id, 100.0) for token_id in (40, 41, 42))
    requests = [request_of(model, p, logit_bias=bias, frequency_penalty=0.5) for p in prompts_of("llama")]
    assert generate(model, requests, limits(64, num_speculative_tokens=4)).num_drafts == 0
    assert Speculator(0).propose((), None, 10) == {}  # type: ignore[arg-type]

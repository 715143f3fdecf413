"""Log-probabilities of a prompt: those of one forward pass of transformers, however it is cut or interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.models.adapter import ModelAdapter
from backend.types.request import Request
from backend.types.result import TokenLogprobs
from tests.equivalence.harness import TEXT_PROMPTS, Adapters, generate, limits, request_of, tight_limits

NUM_TOP = 3


def told_of(model: ModelAdapter, requests: list[Request], **options: bool) -> dict[str, list[TokenLogprobs]]:
    """What each request was told of its prompt, put together as `Answer` does."""
    budget = tight_limits(requests) if options.get("tight") else limits(7, enable_prefix_caching=True)
    told: dict[str, list[TokenLogprobs]] = {request.request_id: [] for request in requests}
    outcome = generate(model, requests, budget)
    for request_id, piece in outcome.prompt_logprobs:
        told[request_id][piece.start - 1 :] = piece.tokens
    if options.get("tight"):
        assert outcome.stats is not None
        assert outcome.stats.num_preemptions_total > 0
    return told


@pytest.mark.parametrize("tight", [False, True])
def test_they_are_those_of_one_pass(checkpoint: Callable[[str], Path], adapter: Adapters, tight: bool) -> None:
    model = adapter("llama")
    requests = [request_of(model, prompt, num_prompt_logprobs=NUM_TOP) for prompt in TEXT_PROMPTS]
    if not tight:
        requests.append(request_of(model, TEXT_PROMPTS[2], "the same again", num_prompt_logprobs=NUM_TOP))
    told = told_of(model, requests, tight=tight)
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint("llama")).eval()
    for request in requests:
        token_ids = request.prompt.token_ids
        with torch.inference_mode():
            logprobs = theirs(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        got = told[request.request_id]
        assert [token.token_id for token in got] == list(token_ids[1:])
        for row, token in enumerate(got):
            assert token.logprob == pytest.approx(logprobs[row, token.token_id].item(), abs=2e-4)
            best = logprobs[row].topk(NUM_TOP)
            assert [p for _, p in token.top] == pytest.approx(best.values.tolist(), abs=2e-4)

"""Bias, penalties, grammars and log-probabilities: what the formulas say, row by row, whoever shares the batch."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from backend.runtime.grammar_mask import unpack
from backend.types.request import SamplingParams
from backend.types.step import Chunk
from tests.unit.runtime.chosen import Choice, choose

V = 50


class Allow:
    """A grammar that allows the ids of a set, whatever came before; or fails."""

    def __init__(self, *token_ids: int, error: Exception | None = None) -> None:
        self.token_ids, self.error = token_ids, error
        self.asked: list[tuple[int, ...]] = []

    def mask(self, history: tuple[int, ...]) -> bytes:
        self.asked.append(history)
        if self.error:
            raise self.error
        return sum(1 << token_id for token_id in self.token_ids).to_bytes(V // 8, "little")


def chunk(request_id: str = "r", prompt: tuple[int, ...] = (), history: tuple[int, ...] = (), **sampling: Any) -> Chunk:
    params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0} | sampling)
    return Chunk(request_id, 0, (1,), (range(1),), (0,), (), True, 3, params, True, prompt, history)


def logits_of(seed: int, num: int = 1) -> torch.Tensor:
    return torch.randn(num, V, generator=torch.Generator().manual_seed(seed)) * 3


def oracle(row: list[float], c: Chunk) -> list[float]:
    """The formulas in plain Python, one token at a time."""
    s, out = c.sampling, []
    bias = dict(s.logit_bias)
    for token_id, logit in enumerate(row):
        if s.grammar is not None and token_id not in s.grammar.token_ids:  # type: ignore[attr-defined]
            out.append(-math.inf)
            continue
        value = logit + bias.get(token_id, 0.0)
        if token_id in c.prompt or token_id in c.history:
            value = value / s.repetition_penalty if value > 0 else value * s.repetition_penalty
        count = c.history.count(token_id)
        out.append(value - s.frequency_penalty * count - (s.presence_penalty if count else 0.0))
    return out


def random_chunk(rng: random.Random, name: str) -> Chunk:
    sampling: dict[str, Any] = {}
    if rng.random() < 0.4:
        sampling["logit_bias"] = tuple((i, rng.uniform(-9, 9)) for i in rng.sample(range(V), 4))
    if rng.random() < 0.4:
        sampling["repetition_penalty"] = rng.uniform(0.5, 2)
    if rng.random() < 0.4:
        sampling["presence_penalty"] = rng.uniform(-2, 2)
    if rng.random() < 0.4:
        sampling["frequency_penalty"] = rng.uniform(-2, 2)
    if rng.random() < 0.4:
        sampling["grammar"] = Allow(*rng.sample(range(48), 20))
    if rng.random() < 0.4:
        sampling["num_logprobs"] = rng.randrange(4)
    # An image's placeholder may lie outside the vocabulary.
    prompt = (*(rng.randrange(V) for _ in range(8)), V + 7)
    return chunk(name, prompt, tuple(rng.randrange(V) for _ in range(6)), **sampling)


@pytest.mark.parametrize("seed", range(30))
def test_the_formulas_hold_and_rows_do_not_touch_each_other(seed: int) -> None:
    rng = random.Random(seed)
    chunks = [random_chunk(rng, str(i)) for i in range(6)]
    logits = logits_of(seed, len(chunks))
    expected = [oracle(row, c) for row, c in zip(logits.tolist(), chunks, strict=True)]
    together = logits.clone()
    choice = choose(together, chunks, [c.sample_index for c in chunks])
    assert not choice.failed
    assert torch.allclose(together, torch.tensor(expected), atol=1e-4)
    for row, c in enumerate(chunks):
        alone = choose(logits[row : row + 1].clone(), [c], [c.sample_index])
        assert alone.token_ids == [choice.token_ids[row]]
        assert alone.logprobs.get(0) == choice.logprobs.get(row)
        assert (row in choice.logprobs) == (c.sampling.num_logprobs is not None)


def test_plain_rows_are_left_as_they_are() -> None:
    logits = logits_of(1, 3)
    before = logits.clone()
    choice = choose(logits, [chunk("a"), chunk("b", temperature=1.0, top_p=0.9, min_p=0.1), chunk("c")], [0, 0, 0])
    assert torch.equal(logits, before)
    assert choice == Choice(choice.token_ids)
    assert chunk("a", temperature=1.0, min_p=0.5, top_k=3, seed=1, num_logprobs=2).sampling.is_plain


def test_logprobs_are_the_models_own_before_bias_penalties_and_temperature() -> None:
    logits = logits_of(2)
    expected = torch.log_softmax(logits[0], dim=-1)
    best = expected.argsort(descending=True)[:3].tolist()
    c = chunk(num_logprobs=3, logit_bias=((best[2], 100.0),), temperature=1.0, top_k=1)
    choice = choose(logits.clone(), [c], [0])
    assert choice.token_ids == [best[2]]
    told = choice.logprobs[0]
    assert told.token_id == best[2]
    assert told.logprob == pytest.approx(expected[best[2]].item(), abs=1e-5)
    assert [i for i, _ in told.top] == best
    assert [p for _, p in told.top] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_what_cannot_come_has_a_finite_logprob() -> None:
    choice = choose(logits_of(3), [chunk(num_logprobs=3, grammar=Allow(4))], [0])
    assert choice.token_ids == [4]
    assert choice.logprobs[0].logprob == pytest.approx(0.0, abs=1e-5)
    assert choice.logprobs[0].top[0][0] == 4
    assert [p for _, p in choice.logprobs[0].top[1:]] == [-9999.0] * 2


def test_a_grammar_that_fails_fails_its_request_alone() -> None:
    logits = logits_of(4, 3)
    chunks = [
        chunk("a"),
        chunk("b", grammar=Allow(error=ValueError("too big\nmore"))),
        chunk("c", grammar=Allow(7)),
    ]
    choice = choose(logits.clone(), chunks, [0, 0, 0])
    assert choice.failed == {"b": "the grammar of its answer cannot go on: ValueError: too big"}
    assert choice.token_ids[0] == logits[0].argmax()
    assert choice.token_ids[2] == 7


def test_a_grammar_is_asked_about_the_history() -> None:
    grammar = Allow(1, 2)
    choose(logits_of(5), [chunk(history=(2, 1, 2), grammar=grammar)], [3])
    assert grammar.asked == [(2, 1, 2)]


def test_masks_shorter_and_longer_than_the_vocabulary() -> None:
    assert unpack(torch.tensor([5], dtype=torch.uint8), 12).tolist() == [True, False, True] + [False] * 9
    assert unpack(torch.tensor([255, 255], dtype=torch.uint8), 3).tolist() == [True] * 3


@pytest.mark.parametrize(("min_p", "ids"), [(0.0, {0, 1, 2, 3, 4}), (0.3, {1, 2, 3}), (0.6, {1, 2}), (1.0, {1})])
def test_min_p_drops_what_is_far_less_likely_than_the_best(min_p: float, ids: set[int]) -> None:
    logits = torch.tensor([0.05, 0.4, 0.25, 0.2, 0.1]).log().repeat(2000, 1)
    params = chunk(temperature=1.0, min_p=min_p, seed=3)
    assert set(choose(logits, [params] * 2000, list(range(2000))).token_ids) == ids

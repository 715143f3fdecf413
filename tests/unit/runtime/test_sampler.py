"""Greedy, temperature, top-k, top-p: the right distribution, and draws that depend on nothing but their own row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from backend.runtime.sampler import INVALID_TOKEN_ID, likeliest, sample, uniform
from backend.types.request import SamplingParams

PROBABILITIES = torch.tensor([0.05, 0.4, 0.25, 0.2, 0.1])
LOGITS = PROBABILITIES.log()


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **changes)


def draw(num: int, **changes: Any) -> Counter[int]:
    """`num` draws from `LOGITS`, one row each, numbered 0..num-1."""
    draws = [uniform(7, index) for index in range(num)]
    return Counter(sample(LOGITS.expand(num, -1), [params(**changes)] * num, draws).tolist())


def test_greedy_takes_the_best() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -1.0, 2.0]])
    assert sample(logits, [params(temperature=0.0)] * 2, [0, 0]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.05, 0.4, 0.25, 0.2, 0.1]),
        ({"temperature": 0.5}, [0.0091, 0.5818, 0.2273, 0.1455, 0.0364]),
        ({"temperature": 2.0}, [0.1087, 0.3074, 0.2431, 0.2174, 0.1537]),
        ({"top_k": 2}, [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        ({"top_k": 99}, [0.05, 0.4, 0.25, 0.2, 0.1]),
        ({"top_p": 0.6}, [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        ({"top_p": 0.66}, [0, 0.4 / 0.85, 0.25 / 0.85, 0.2 / 0.85, 0]),
        ({"top_p": 0.0}, [0, 1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
    ],
)
def test_the_distribution_is_the_one_asked_for(changes: dict[str, Any], expected: list[float]) -> None:
    num = 20_000
    counts = draw(num, **({"temperature": 1.0} | changes))
    for token_id, probability in enumerate(expected):
        # Five standard deviations of a binomial count.
        tolerance = 5 * (probability * (1 - probability) / num) ** 0.5 + 1e-4
        assert abs(counts[token_id] / num - probability) <= tolerance


def test_rows_draw_by_themselves() -> None:
    """A row's draw is the same alone, in company, and in any place of the batch."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 500, generator=generator)
    rows = [params(temperature=0.3 + 0.2 * i, top_p=1.0 - 0.05 * i, top_k=i * 20) for i in range(7)]
    rows.append(params(temperature=0.0))
    draws = [uniform(i, 0) for i in range(8)]
    together = sample(logits, rows, draws).tolist()
    assert [sample(logits[i : i + 1], [rows[i]], [draws[i]]).item() for i in range(8)] == together
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    shuffled = sample(logits[order], [rows[i] for i in order], [draws[i] for i in order])
    assert shuffled.tolist() == [together[i] for i in order]
    assert len(set(together)) > 4


def test_seed_and_number_choose_the_draw() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    numbers = [uniform(seed, index) for seed in range(100) for index in range(100)]
    assert len(set(numbers)) == len(numbers)
    assert 0.0 <= min(numbers) < 0.001
    assert 0.999 < max(numbers) < 1.0
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.015
    assert 0.0 <= uniform(-1, 0) < 1.0
    assert 0.0 <= uniform(2**70, 0) < 1.0


@pytest.mark.parametrize("temperature", [9e-6, 1e-30, 1e-46, 5e-324])
def test_tiny_temperature_is_greedy_and_not_nan(temperature: float) -> None:
    logits = torch.randn(16, 300, generator=torch.Generator().manual_seed(1)) * 30
    drawn = sample(logits, [params(temperature=temperature)] * 16, [uniform(i, 0) for i in range(16)])
    assert torch.equal(drawn, logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_numbers_are_marked(temperature: float) -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(2))
    logits[1] = float("nan")
    logits[2, 3] = float("inf")
    ids = sample(logits, [params(temperature=temperature, top_p=0.9)] * 4, [0.5] * 4).tolist()
    assert ids[1] == ids[2] == INVALID_TOKEN_ID
    assert ids[0] in range(10)
    assert ids[3] in range(10)


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((50, 4), float("-inf"))
    logits[:, 2] = 0.0
    draws = [0.0, *(uniform(i, 0) for i in range(48)), 1.0 - 2.0**-53]
    assert sample(logits, [params(temperature=1.5)] * 50, draws).tolist() == [2] * 50


def test_the_likeliest_of_rows_apart_is_that_of_rows_together() -> None:
    """Rows with something between them are gone through one by one."""
    padded = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)).round()  # rounded, so that there are ties
    padded[3, 7], padded[4, 7], padded[5] = float("nan"), float("inf"), float("-inf")
    apart = padded[:, :33]
    assert not apart.is_contiguous()
    expected = [INVALID_TOKEN_ID if row in (3, 4, 5) else int(apart[row].argmax()) for row in range(9)]
    assert likeliest(apart).tolist() == likeliest(apart.contiguous()).tolist() == expected

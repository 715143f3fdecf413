"""The likeliest tokens that the compiled head finds are those that the sampler finds in the same head's logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.models.adapter import ModelAdapter, TextParts
from backend.models.registry import load
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.kv_pool import KvPool
from backend.runtime.native.compiler import find_native_obstacle, make_native
from backend.runtime.native.packing import Numbers
from backend.runtime.sampler import INVALID_TOKEN_ID, likeliest
from backend.runtime.text_backend import TextBackend

NUMBERS: tuple[Numbers, ...] = ("float32", "int8", "int4")
MAX_ROWS, VOCAB_SIZE = 70, 3 * 32 + 7
INF, NAN = float("inf"), float("nan")

PLACES: dict[str, dict[int, float]] = {
    "one": {50: 9.0},
    "the first of all": {0: 9.0},
    "the last of all": {VOCAB_SIZE - 1: 9.0},
    "the first of equal ones, in other columns": {33: 9.0, 70: 9.0, 95: 9.0},
    "the first of equal ones, in one column": {1 + 64: 9.0, 1 + 32: 9.0},
    "the first of equal ones, side by side": {32: 9.0, 31: 9.0},
    "all below zero": dict.fromkeys(range(VOCAB_SIZE), -5.0) | {40: -4.0, 41: -4.0},
    "zeros of both signs": dict.fromkeys(range(VOCAB_SIZE), -1.0) | {20: -0.0, 60: 0.0},
    "some that cannot come": {3: -INF, 40: 9.0, 41: -INF},
    "nothing that can come": dict.fromkeys(range(VOCAB_SIZE), -INF),
    "infinite": {30: INF},
    "no number": {30: NAN},
    "no number, below zero": {30: float(np.copysign(NAN, -1.0)), 90: 9.0},
    "no number, after the largest": {30: 9.0, VOCAB_SIZE - 1: NAN},
    "infinite before no number": {30: INF, 40: NAN},
}


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> ModelAdapter:
    adapter = load(str(checkpoint("llama")), device="cpu", dtype="float32")
    if obstacle := find_native_obstacle(adapter.text_parts(), int8=True):
        pytest.skip(obstacle)
    return adapter


def backend_of(model: ModelAdapter, head: torch.nn.Linear, numbers: Numbers) -> TextBackend:
    """The compiled loops with another head, after a step of `MAX_ROWS` rows, which its memory then is for."""
    pool = KvPool(model.spec, num_blocks=1, block_size=MAX_ROWS, dtype=torch.float32, device=model.device)
    parts: TextParts = replace(model.text_parts(), head=head)
    text = make_native(parts, pool, numbers)
    places = torch.arange(MAX_ROWS)
    text.forward(torch.zeros(MAX_ROWS, model.spec.hidden_size), places[None], whole(places))
    return text


def whole(places: torch.Tensor) -> AttentionInputs:
    return AttentionInputs((0, len(places)), (len(places),), ((0,),), places)


def head_of(model: ModelAdapter, vocab_size: int) -> torch.nn.Linear:
    """Random weights; the same ones at the end as at the start, so that there are ties."""
    torch.manual_seed(vocab_size)
    head = torch.nn.Linear(model.spec.hidden_size, vocab_size)
    half = vocab_size // 2
    with torch.no_grad():
        head.weight[vocab_size - half :] = head.weight[:half]
        head.bias.zero_()
    return head


def rows_of(model: ModelAdapter, num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, model.spec.hidden_size, generator=torch.Generator().manual_seed(num_rows))


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, VOCAB_SIZE, 1000])
def test_every_number_of_rows_and_every_end_of_a_vocabulary(
    model: ModelAdapter, numbers: Numbers, vocab_size: int
) -> None:
    with torch.inference_mode():
        text = backend_of(model, head_of(model, vocab_size), numbers)
        for num_rows in (1, 2, 5, 13, MAX_ROWS):
            hidden = rows_of(model, num_rows)
            ids = text.likeliest(hidden).tolist()
            assert ids == likeliest(text.logits(hidden)).tolist()
            assert max(ids) <= vocab_size - vocab_size // 2, "of two equal ones the first"


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("name", PLACES)
def test_logits_made_by_hand(model: ModelAdapter, numbers: Numbers, name: str) -> None:
    """They are the head's bias: its weights are zeros."""
    head = head_of(model, VOCAB_SIZE)
    with torch.inference_mode():
        head.weight.zero_()
        for index, value in PLACES[name].items():
            head.bias[index] = value
        text = backend_of(model, head, numbers)
        hidden = rows_of(model, 3)
        logits = text.logits(hidden)
        assert torch.equal(logits.nan_to_num(nan=1e9), head.bias.nan_to_num(nan=1e9).expand(3, -1)), "as meant"
        assert torch.equal(text.likeliest(hidden), likeliest(logits))


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_broken_row_spoils_no_other(model: ModelAdapter, numbers: Numbers) -> None:
    with torch.inference_mode():
        text = backend_of(model, head_of(model, VOCAB_SIZE), numbers)
        hidden = rows_of(model, 9)
        sound = text.likeliest(hidden).tolist()
        hidden[2, 5] = NAN
        hidden[7] = NAN
        expected = [INVALID_TOKEN_ID if row in (2, 7) else id_ for row, id_ in enumerate(sound)]
        assert text.likeliest(hidden).tolist() == expected == likeliest(text.logits(hidden)).tolist()

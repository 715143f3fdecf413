"""Slices smaller than a block: exactly as many as announced, the rows of transformers, whatever happens between."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.models.adapter import ModelAdapter
from backend.models.packed_linear import PackedLinear, pack_linear, pack_mlp, unpack_linear
from backend.models.registry import load
from backend.models.sliced import SlicedTower
from backend.models.vision_slices import ByRows, split_rows
from tests.equivalence.harness import picture
from tests.unit.models.test_encode import image_of, resume, run, theirs

SLICES_PER_BLOCK = 2 * 6
"""16 patches are two ranges of 8, in each of: queries, keys, values, attention, its output, MLP."""


@pytest.fixture
def fine(checkpoint: Callable[[str], Path]) -> ModelAdapter:
    """A tower of which nothing, however small, fits into one slice with anything else."""
    model: Any = load(str(checkpoint("smolvlm")), device="cpu", dtype="auto")
    model._tower.slice_s = 1e-12
    model._slices_per_tile = model._count_slices()
    return model


@pytest.mark.parametrize(
    ("num_rows", "row_s"), [(1024, 1e-5), (1024, 1e-3), (16, 1.0), (5, 1.0), (729, 2e-5), (1, 0.0)]
)
def test_ranges_cover_all_rows_in_order(num_rows: int, row_s: float) -> None:
    ranges = split_rows(num_rows, row_s, slice_s=0.005)
    assert [row for rows in ranges for row in rows] == list(range(num_rows))
    assert all(len(rows) * row_s <= 0.005 or len(rows) <= 8 for rows in ranges)
    assert all(len(before) >= len(after) for before, after in pairwise(ranges))


def test_a_block_takes_many_slices_and_exactly_the_announced(fine: ModelAdapter) -> None:
    image = image_of(fine, picture(1, 96, 64))
    patches_and_connector = 2
    assert image.num_slices == 7 * (3 * SLICES_PER_BLOCK + patches_and_connector)
    rows = run(fine, image)
    assert rows.shape == (image.num_embeds, fine.spec.hidden_size)


def test_rows_are_those_of_transformers(fine: ModelAdapter, checkpoint: Callable[[str], Path]) -> None:
    image = picture(1, 96, 64)
    rows = run(fine, image_of(fine, image))
    torch.testing.assert_close(rows, theirs(checkpoint("smolvlm"), image), atol=1e-5, rtol=1e-5)


def test_encoders_interleaved_inside_their_blocks(fine: ModelAdapter) -> None:
    images = [image_of(fine, picture(seed, 32, 32)) for seed in (1, 2)]
    alone = [run(fine, image) for image in images]
    encoders = [fine.encode(image) for image in images]
    results: list[torch.Tensor | None] = []
    resume(encoders[0])  # one slice ahead, so that they are never at the same place
    for _ in range(images[0].num_slices - 1):
        results = [resume(encoder) for encoder in encoders]
    first, second = results[0], resume(encoders[1])
    assert first is not None
    assert second is not None
    assert torch.equal(first, alone[0])
    assert torch.equal(second, alone[1])
    assert not torch.equal(first, second)


def test_an_encoder_dropped_inside_a_block_leaves_no_trace(fine: ModelAdapter) -> None:
    image = image_of(fine, picture(3, 32, 32))
    before = run(fine, image)
    for num_slices in range(1, SLICES_PER_BLOCK + 2):
        encoder = fine.encode(image)
        for _ in range(num_slices):
            resume(encoder)
        encoder.close()
    assert torch.equal(run(fine, image), before)


def test_work_is_put_together_up_to_the_length_of_a_slice() -> None:
    tower = SlicedTower([], slice_s=1.0)

    def call() -> torch.Tensor:
        for seconds in (0.4, 0.5, 0.2, 5.0, 0.9, 0.1):
            tower.spend(seconds)
        return torch.zeros(1)

    assert tower.count(call) == 4  # 0.4 + 0.5 | 0.2 | 5.0 | 0.9 + 0.1
    tower.spend(5.0)  # outside a run there is nothing to pause


def test_rows_by_range_are_the_rows_of_the_whole() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(24, 40)
    x = torch.randn(2, 37, 24)
    tower = SlicedTower([], slice_s=1e-9)
    torch.testing.assert_close(ByRows(module, tower, 1.0)(x), module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", [torch.nn.GELU(), torch.nn.ReLU(), "gelu_pytorch_tanh"])
def test_a_packed_mlp_is_the_mlp(activation: Any) -> None:
    from transformers.activations import ACT2FN

    act = ACT2FN[activation] if isinstance(activation, str) else activation
    torch.manual_seed(0)
    up, down, x = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64, bias=False), torch.randn(1, 19, 64)
    with torch.inference_mode():
        whole = down(act(up(x)))
        torch.testing.assert_close(pack_mlp(up, act, down)(x), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_can_be_had_back(bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(72, 40, bias=bias)
    back = unpack_linear(pack_linear(linear))
    assert torch.equal(back.weight, linear.weight)
    assert back.bias is None if linear.bias is None else torch.equal(back.bias, linear.bias)
    assert unpack_linear(linear) is linear


def test_only_float32_on_a_cpu_is_packed() -> None:
    linear = torch.nn.Linear(8, 8)
    assert isinstance(pack_linear(linear), PackedLinear)
    half = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    assert pack_linear(half) is half
    elsewhere = torch.nn.Linear(8, 8, device="meta")
    assert pack_linear(elsewhere) is elsewhere

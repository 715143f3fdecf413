"""Products of packed matrices against the same in float64 with the weights that the packed ones stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from backend.errors import ConfigError
from backend.runtime.native.compiler import find_kernel_obstacle
from backend.runtime.native.packing import (
    PANEL,
    Groups,
    Numbers,
    aligned,
    group_len,
    is_int4_as_close,
    pack,
    quantise_int4,
    quantise_int8,
)

QUANTISERS: dict[Numbers, Callable[[torch.Tensor], Groups]] = {"int8": quantise_int8, "int4": quantise_int4}
MAX_ROWS, TALLEST = 23, 12


@pytest.fixture(scope="module")
def product() -> Callable[..., tuple[np.ndarray, torch.Tensor]]:
    """Rows float32 [n, K] times a packed linear, and the rows as the tiles saw them, float64."""
    if obstacle := find_kernel_obstacle(int8=True):
        pytest.skip(obstacle)
    from backend.runtime.native.products import hand_over, multiply
    from backend.runtime.native.shares import TALLY_BYTES
    from backend.runtime.native.vectors import compiled

    @compiled(cache=False)
    def quantise_rows(values: Any, rows: Any, scales: Any, offsets: Any, length: int) -> None:
        for t in range(len(values)):
            hand_over(values[t], rows[t], scales[t], offsets[t], length)

    @compiled(cache=False)
    def call(tally, num_rows, tallest, num_columns, length, matrix, rows, scales, offsets, out, adds):  # noqa: ANN001, ANN202
        multiply(tally.ctypes.data, num_rows, tallest, num_columns, length, matrix, rows, scales, offsets, out, adds)

    def multiplied(
        x: torch.Tensor,
        linear: torch.nn.Linear,
        numbers: Numbers,
        *,
        before: float | None = None,
        tallest: int = TALLEST,
    ) -> tuple[np.ndarray, torch.Tensor]:
        (count, columns), num_outputs, length = x.shape, len(linear.weight), group_len(x.shape[1])
        packed = pack([linear], numbers)
        rows, scales, offsets = (
            aligned([count, size], kind)
            for size, kind in ((columns, np.int8), (columns // length, np.float32), (columns // length, np.int32))
        )
        quantise_rows(x.numpy(), rows, scales, offsets, length)
        out = np.full((count, -(-num_outputs // PANEL) * PANEL), before or 0.0, np.float32)
        matrix = np.array(packed.addresses, np.int64)
        tally = aligned([TALLY_BYTES], np.int8)
        adds = int(before is not None)
        call(tally, count, tallest, num_outputs, length, matrix, rows, scales, offsets, out, adds)
        seen = torch.from_numpy(rows).double().unflatten(1, (-1, length)) * torch.from_numpy(scales)[..., None]
        return out[:, :num_outputs], seen.flatten(1)

    return multiplied


def linear_of(columns: int, num_outputs: int, *, bias: bool = True, seed: int = 0) -> torch.nn.Linear:
    """Weights whose groups differ in spread and lie off zero, as real ones do."""
    torch.manual_seed(seed)
    linear = torch.nn.Linear(columns, num_outputs, bias=bias)
    with torch.no_grad():
        linear.weight.normal_().mul_(torch.rand(num_outputs, 1) * 3).add_(torch.randn(1, columns))
    return linear


@pytest.mark.parametrize("numbers", ["int8", "int4"])
@pytest.mark.parametrize(("columns", "num_outputs"), [(64, 32), (96, 200), (40, 33)])
def test_a_product_is_that_of_the_weights_it_stands_for(
    product: Callable[..., Any], numbers: Numbers, columns: int, num_outputs: int
) -> None:
    """Every height of a tile, outputs that fill no panel, groups shorter than 32, with bias and added to what was."""
    linear = linear_of(columns, num_outputs)
    exact = QUANTISERS[numbers](linear.weight.detach()).weights().double()
    x = torch.randn(MAX_ROWS, columns) * torch.rand(MAX_ROWS, 1)
    for count in (*range(1, 14), MAX_ROWS):
        out, seen = product(x[:count].contiguous(), linear, numbers, before=2.5)
        expected = seen @ exact.T + linear.bias.detach() + 2.5
        torch.testing.assert_close(torch.from_numpy(out).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("numbers", ["int8", "int4"])
def test_a_row_is_the_same_in_any_company(product: Callable[..., Any], numbers: Numbers) -> None:
    linear, x = linear_of(96, 64), torch.randn(MAX_ROWS, 96)
    together, _ = product(x, linear, numbers)
    alone = np.concatenate([product(row[None], linear, numbers)[0] for row in x])
    assert np.array_equal(together, alone)
    assert np.array_equal(together, product(x, linear, numbers, tallest=3)[0])


def test_weights_that_had_four_bits_are_the_same_again() -> None:
    """Codes, scales and minima as GGUF's Q4_1 has them; then a weight that is off."""
    torch.manual_seed(1)
    scales, minima = ((torch.randn(50, 6, 1) * size).half().float() for size in (0.01, 0.1))
    codes = torch.randint(0, 16, (50, 6, 32)).float()
    codes[..., 0], codes[..., 5] = 0.0, 15.0
    weight = (codes * scales.abs() + minima).flatten(1)
    assert (quantise_int4(weight).weights() - weight).abs().max() < 1e-6
    assert is_int4_as_close(weight)
    assert not is_int4_as_close(weight + 0.003 * torch.randn(weight.shape))


def test_odd_weights_are_kept() -> None:
    """Groups of one value, of zeros, and with a value that is not a number."""
    weight = torch.zeros(3, 64)
    weight[1] = -0.375
    assert torch.equal(quantise_int4(weight).weights(), weight)
    for bad in (float("nan"), 1e6):
        weight[2, 7] = bad
        with pytest.raises(ConfigError, match="int4 needs weights of at most 65504"):
            quantise_int4(weight)


def test_an_int4_matrix_takes_five_bits_a_weight() -> None:
    linear = linear_of(64, 64)
    sizes = {n: (m := pack([linear], n)).weights.nbytes + m.scales.nbytes for n in ("int8", "int4")}
    assert sizes == {"int8": 64 * 64 * 9 // 8, "int4": 64 * 64 * 5 // 8}

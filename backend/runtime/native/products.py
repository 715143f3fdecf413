"""Matrix products of a step's rows with packed weights, and how rows become their input: as they are, or in int8.

Which of the two is decided by the type of the rows' array, when the code is compiled; the tiles for int8 rows are not
even compiled on a processor that lacks their instruction. Each matrix says whether its own weights are int8 or int4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from backend.runtime.native.shares import settle, take, take_next
from backend.runtime.native.tiles import panel_f32, panel_int8
from backend.runtime.native.tiles_int4 import panel_int4
from backend.runtime.native.vectors import compiled

PANEL = 32
FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Sums may be reordered to fill vectors. Not-a-number keeps its meaning: a broken row must stay visible."""


@compiled
def _panel_whole(bits, num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate):  # noqa: ANN001, ANN202
    if bits == 4:
        panel_int4(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate)
    else:
        panel_int8(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate)


def panel(rows_like: Any, bits: int, *arguments: Any) -> None:
    """The product of rows and one panel, by the type of the rows' array and the bits of a weight."""
    raise TypeError("only compiled code calls this")


@overload(panel, strict=False)
def _panel(rows_like: Any, bits: Any, *arguments: Any) -> Any:
    if rows_like.dtype == types.int8:
        return lambda rows_like, bits, *arguments: _panel_whole(bits, *arguments)
    return lambda rows_like, bits, *arguments: panel_f32(*arguments)


def hand_over(values: Any, rows: Any, scales: Any, offsets: Any, group_len: int) -> None:
    """Make one row of float values the input of a product: as it is, or in int8 with a scale for each group."""
    raise TypeError("only compiled code calls this")


@compiled(fastmath=FAST)
def _copy_row(values: np.ndarray, rows: np.ndarray) -> None:
    for i in range(len(values)):
        rows[i] = values[i]


@compiled(fastmath=FAST)
def _quantise_row(
    values: np.ndarray, rows: np.ndarray, scales: np.ndarray, offsets: np.ndarray, group_len: int
) -> None:
    for group in range(len(values) // group_len):
        source = values[group * group_len : (group + 1) * group_len]
        target = rows[group * group_len : (group + 1) * group_len]
        # As integers: magnitudes keep their order, and not-a-number is larger than any, so that it is not lost.
        largest = np.int32(0)
        bits = source.view(np.int32)
        for i in range(group_len):
            largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
        peak = np.int32(largest).view(np.float32)
        factor = np.float32(127.0) / max(peak, np.float32(1e-30))
        total = np.int32(0)
        for i in range(group_len):
            scaled = source[i] * factor
            rounded = np.int32(scaled + (np.float32(0.5) if scaled >= np.float32(0.0) else np.float32(-0.5)))
            target[i] = np.int8(rounded)
            total += rounded
        scales[group] = peak / np.float32(127.0)
        offsets[group] = np.int32(-128) * total


@overload(hand_over, strict=False)
def _hand_over(values: Any, rows: Any, scales: Any, offsets: Any, group_len: Any) -> Any:
    if rows.dtype == types.int8:
        return lambda values, rows, scales, offsets, group_len: _quantise_row(values, rows, scales, offsets, group_len)
    return lambda values, rows, scales, offsets, group_len: _copy_row(values, rows)


@compiled
def multiply_panel(p, num_rows, tallest, group_len, matrix, rows, scales, offsets, out, accumulate):  # noqa: ANN001, ANN201
    """Panel `p` of `multiply`, written to `out` (address of its first column, bytes from row to row)."""
    bits = matrix[4]
    num_groups = matrix[3] // group_len
    num_steps = group_len * rows.itemsize // 4
    step_bytes = 2 * PANEL if bits == 4 else 4 * PANEL
    at = 4 * PANEL * p
    weights = (matrix[0] + p * step_bytes * num_groups * num_steps, step_bytes, matrix[1] + at * num_groups)
    inputs = (rows.ctypes.data, rows.strides[0], scales.ctypes.data, offsets.ctypes.data, scales.shape[1])
    panel(rows, bits, num_rows, tallest, weights, inputs, num_groups, num_steps, out, matrix[2] + at, accumulate)


@compiled
def multiply(tally, num_rows, tallest, num_columns, group_len, matrix, rows, scales, offsets, out, accumulate):  # noqa: ANN001, ANN201
    """out[:num_rows, :num_columns] (+)= rows times one packed matrix (see `PackedMatrix.addresses`).

    A task is a panel.
    """
    result, result_stride = out.ctypes.data, out.strides[0]
    num_panels = (num_columns + PANEL - 1) // PANEL
    p = take(tally)
    while p < num_panels:
        place = (result + 4 * PANEL * p, result_stride)
        multiply_panel(p, num_rows, tallest, group_len, matrix, rows, scales, offsets, place, accumulate)
        p = take_next(tally)
    settle(tally, num_panels)

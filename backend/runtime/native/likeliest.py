"""The likeliest token of each row while its logits are still in the first-level cache: they are never written out.

Each thread keeps the largest of the panels that it computes and where it was, for each row; what is left at the end is
to compare the threads. Most panels hold nothing larger, which one look at their vectors tells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from backend.runtime.native.products import PANEL, multiply_panel
from backend.runtime.native.shares import settle, take, take_next
from backend.runtime.native.vectors import F32S, I64, LANES, address, compiled, load, splat
from backend.runtime.sampler import INVALID_TOKEN_ID

BITS = ir.IntType(LANES)


@intrinsic
def _has_larger(context: Any, values: Any, best: Any) -> Any:
    """Whether any of a panel's values at an address is larger than `best`, or either is not a number."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start, limit = arguments[0], splat(builder, arguments[1], F32S)
        found = BITS(0)
        for vector in range(PANEL // LANES):
            row = load(builder, address(builder, start, (I64(vector), 4 * LANES)), F32S)
            found = builder.or_(found, builder.bitcast(builder.fcmp_unordered(">", row, limit), BITS))
        return builder.icmp_unsigned("!=", found, BITS(0))

    return types.boolean(types.int64, types.float32), generate


@compiled
def _keep_larger(values: np.ndarray, first: int, best: np.ndarray, ids: np.ndarray, row: int) -> None:
    """Look at one row's values, the tokens from `first` on. Of equal ones the first stays; so does not-a-number."""
    for column in range(len(values)):
        value = values[column]
        if value > best[row] or value != value:
            best[row], ids[row] = value, first + column


@compiled
def multiply_for_likeliest(  # noqa: ANN201
    tally,  # noqa: ANN001
    num_rows,  # noqa: ANN001
    tallest,  # noqa: ANN001
    num_columns,  # noqa: ANN001
    group_len,  # noqa: ANN001
    matrix,  # noqa: ANN001
    rows,  # noqa: ANN001
    scales,  # noqa: ANN001
    offsets,  # noqa: ANN001
    values,  # noqa: ANN001  float32 [n, PANEL], this thread's
    best,  # noqa: ANN001  float32 [n], minus infinity at first; this thread's
    ids,  # noqa: ANN001  int64 [n], this thread's
):
    """One thread's part of `multiply`, of whose result only the largest are kept. A task is a panel."""
    num_panels = (num_columns + PANEL - 1) // PANEL
    start, stride = values.ctypes.data, values.strides[0]
    p = take(tally)
    while p < num_panels:
        multiply_panel(p, num_rows, tallest, group_len, matrix, rows, scales, offsets, (start, stride), 0)
        first = p * PANEL
        num_tokens = min(PANEL, num_columns - first)
        for row in range(num_rows):
            if _has_larger(start + row * stride, best[row]):  # type: ignore[call-arg]
                _keep_larger(values[row, :num_tokens], first, best, ids, row)
        p = take_next(tally)
    settle(tally, num_panels)


@compiled
def pick_likeliest(best: np.ndarray, ids: np.ndarray, picked: np.ndarray) -> None:
    """What the threads kept, [threads, n], into token ids int64 [n].

    Of equal ones the first; `INVALID_TOKEN_ID` where the largest is no finite number, or one is not a number.
    """
    for row in range(len(picked)):
        top, picked[row] = best[0, row], ids[0, row]
        for thread in range(1, len(best)):
            value, id_ = best[thread, row], ids[thread, row]
            if value > top or value != value or (value == top and id_ < picked[row]):
                top, picked[row] = value, id_
        if not np.isfinite(top):
            picked[row] = INVALID_TOKEN_ID

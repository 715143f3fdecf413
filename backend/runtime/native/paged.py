"""Causal attention straight from the paged pool: grouped queries, sliding windows, any lengths in one step.

Keys and values are read where they lie, run by run: blocks that follow one another in the pool are one run. Only a
longer chunk first lays its sequence's keys out anew, transposed in panels, once for all its rows and heads.
"""

from __future__ import annotations

import numpy as np

from backend.runtime.native.dots import dots
from backend.runtime.native.elementwise import exponential
from backend.runtime.native.products import FAST, PANEL
from backend.runtime.native.shares import settle, take, take_next
from backend.runtime.native.tiles import panel_f32
from backend.runtime.native.vectors import compiled

TILE_ROWS = 24


@compiled(fastmath=FAST)
def _soften(scores: np.ndarray, scale: np.float32) -> None:
    """Softmax of one row's scores times `scale`, in place."""
    peak = scores[0]
    for i in range(len(scores)):
        peak = max(peak, scores[i])
    total = np.float32(0.0)
    for i in range(len(scores)):
        weight = exponential((scores[i] - peak) * scale)
        scores[i] = weight
        total += weight
    inverse = np.float32(1.0) / total
    for i in range(len(scores)):
        scores[i] *= inverse


@compiled
def _find_run(table: np.ndarray, block_size: int, index: int, end: int) -> tuple[int, int]:
    """The slot of key `index`, and how many of the keys up to `end` lie there in a row."""
    block, offset = index // block_size, index % block_size
    slot, length = table[block] * block_size + offset, block_size - offset
    while index + length < end and table[block + 1] == table[block] + 1:
        block += 1
        length += block_size
    return slot, min(length, end - index)


@compiled
def _mix(num_rows, tallest, scores, scores_stride, values, table, block_size, first, end, column, mixed, out):  # noqa: ANN001, ANN202
    """out [rows, D] = weights [rows, keys] times the values of keys first..end-1, whose head begins at `column`.

    Computed 32 columns at a time in `mixed`: what lies beyond the head there is another's and is dropped.
    """
    dim = out.shape[1]
    target, zeros = mixed.ctypes.data, mixed.ctypes.data + 4 * num_rows * PANEL
    for c in range(0, dim, PANEL):
        index = first
        mixed[: (num_rows + 1) * PANEL] = np.float32(0.0)
        while index < end:
            slot, length = _find_run(table, block_size, index, end)
            weights = (values.ctypes.data + slot * values.strides[0] + 4 * (column + c), values.strides[0], 0)
            rows = (scores + 4 * (index - first), scores_stride, 0, 0, 0)
            panel_f32(num_rows, tallest, weights, rows, 1, length, (target, 4 * PANEL), zeros, 1)
            index += length
        size = min(PANEL, dim - c)
        for row in range(num_rows):
            out[row, c : c + size] = mixed[row * PANEL : row * PANEL + size]


@compiled
def attend_rows(tally, thread, rows, qkv, sequences, heads, tallest, window, scale, scratch, out):  # noqa: ANN001, ANN201
    """Attention of single rows, each by itself. A task is one row and one key head with the heads that share it."""
    keys, values, tables, block_size, row_seqs, row_ends = sequences
    num_heads, num_kv_heads, dim = heads
    ratio = num_heads // num_kv_heads
    width = scratch.shape[1] // TILE_ROWS - 2 * PANEL
    num_tasks = len(rows) * num_kv_heads
    task = take(tally)
    while task < num_tasks:
        row, kv_head = rows[task // num_kv_heads], task % num_kv_heads
        table, column, at = tables[row_seqs[row]], kv_head * dim, kv_head * ratio * dim
        end = row_ends[row]
        first = max(0, end - window) if window > 0 else 0
        scores = scratch[thread]
        address = scores.ctypes.data
        index = first
        while index < end:
            slot, length = _find_run(table, block_size, index, end)
            dots(
                ratio, qkv.ctypes.data + row * qkv.strides[0] + 4 * at, 4 * dim,
                keys.ctypes.data + slot * keys.strides[0] + 4 * column, keys.strides[0], length, dim,
                address + 4 * (index - first), 4 * width,
            )  # fmt: skip
            index += length
        for head in range(ratio):
            _soften(scores[head * width : head * width + end - first], scale)
        mixed, result = scores[TILE_ROWS * width :], out[row, at : at + ratio * dim].reshape(ratio, dim)
        _mix(ratio, tallest, address, 4 * width, values, table, block_size, first, end, column, mixed, result)
        task = take_next(tally)
    settle(tally, num_tasks)


@compiled
def lay_out(tally, start, num_rows, sequences, heads, first, key_panels):  # noqa: ANN001, ANN201
    """The keys that rows start.. of one sequence see, from key `first` on, as [head, panel, D, 32]; zeros after."""
    keys, _, tables, block_size, row_seqs, row_ends = sequences
    _, num_kv_heads, dim = heads
    table, end = tables[row_seqs[start]], row_ends[start + num_rows - 1]
    num_panels = (end - first + PANEL - 1) // PANEL
    task = take(tally)
    while task < num_kv_heads * num_panels:
        head, p = task // num_panels, task % num_panels
        for lane in range(PANEL):
            index = first + p * PANEL + lane
            inside = index < end
            slot = table[index // block_size] * block_size + index % block_size if inside else 0
            for d in range(dim):
                key_panels[(task * dim + d) * PANEL + lane] = keys[slot, head * dim + d] if inside else np.float32(0.0)
        task = take_next(tally)
    settle(tally, num_kv_heads * num_panels)


@compiled
def attend_chunk(tally, thread, start, num_rows, qkv, sequences, heads, tiling, window, scale, panels, scratch, out):  # noqa: ANN001, ANN201
    """Attention of one sequence's rows start.. over keys laid out in `panels`. A task is some rows of a head.

    `tiling`: (tallest tile, the first key laid out).
    """
    tallest, first = tiling
    _, values, tables, block_size, row_seqs, row_ends = sequences
    num_heads, num_kv_heads, dim = heads
    table = tables[row_seqs[start]]
    num_panels = (row_ends[start + num_rows - 1] - first + PANEL - 1) // PANEL
    num_tiles = (num_rows + TILE_ROWS - 1) // TILE_ROWS
    width = scratch.shape[1] // TILE_ROWS - 2 * PANEL
    task = take(tally)
    while task < num_heads * num_tiles:
        # The last tiles see the most keys: they go first.
        head, row = task % num_heads, start + (num_tiles - 1 - task // num_heads) * TILE_ROWS
        count = min(TILE_ROWS, start + num_rows - row)
        kv_head = head // (num_heads // num_kv_heads)
        # Panels before the first row's window or after the last row's own key are nobody's.
        begin = max(row_ends[row] - window - first, 0) // PANEL if window > 0 else 0
        last_end = row_ends[row + count - 1]
        scores = scratch[thread]
        address, mixed = scores.ctypes.data, scores[TILE_ROWS * width :]
        zeros = mixed.ctypes.data + 4 * TILE_ROWS * PANEL
        mixed[TILE_ROWS * PANEL : (TILE_ROWS + 1) * PANEL] = np.float32(0.0)
        query = (qkv.ctypes.data + row * qkv.strides[0] + 4 * head * dim, qkv.strides[0], 0, 0, 0)
        for p in range(begin, (last_end - first + PANEL - 1) // PANEL):
            weights = (panels.ctypes.data + 4 * (kv_head * num_panels + p) * dim * PANEL, 4 * PANEL, 0)
            panel_f32(count, tallest, weights, query, 1, dim, (address + 4 * (p - begin) * PANEL, 4 * width), zeros, 0)
        origin = first + begin * PANEL
        for r in range(count):
            line = scores[r * width : r * width + last_end - origin]
            end = row_ends[row + r] - origin
            low = max(0, end - window) if window > 0 else 0
            _soften(line[low:end], scale)
            line[:low] = np.float32(0.0)
            line[end:] = np.float32(0.0)
        result = out[row : row + count, head * dim : (head + 1) * dim]
        column = kv_head * dim
        _mix(count, tallest, address, 4 * width, values, table, block_size, origin, last_end, column, mixed, result)
        task = take_next(tally)
    settle(tally, num_heads * num_tiles)

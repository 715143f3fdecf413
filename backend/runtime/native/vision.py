"""A block of a vision transformer over ranges of patches, in int8: norms, projections, attention, network.

Attention multiplies in int8 too. Keys and values take the place of weights: keys without their mean over all patches
(which a softmax does not see, and which would waste most of the 8 bits), values with a scale for each 64 patches, and
so has what the softmax gives. Keeping the keys' mean out is SageAttention's idea (arXiv 2410.02367).
"""

from __future__ import annotations

import numpy as np
from numba import get_thread_id, prange  # type: ignore[attr-defined]

from backend.runtime.native.elementwise import exponential
from backend.runtime.native.products import FAST, PANEL, hand_over
from backend.runtime.native.softmax import GROUP, soften
from backend.runtime.native.tiles import panel_int8
from backend.runtime.native.vectors import compiled
from backend.runtime.native.vision_weights import DOWN, OUT, QKV, UP

KEYS_GROUP = GROUP
"""Patches that share a scale of values, as they do of attention weights."""
TILE = 12


@compiled(parallel=True)
def multiply(num_rows, num_columns, group_len, matrix, rows, scales, offsets, out, accumulate):  # noqa: ANN001, ANN201
    """out[:num_rows, :num_columns] (+)= int8 rows times one packed matrix: [address, scales', bias' address, K].

    Patches are many: a parallel region for each product costs little beside it, and a pause between two needs no
    thread that waits.
    """
    num_groups = matrix[3] // group_len
    num_steps = group_len // 4
    panel_bytes = 4 * PANEL * num_groups * num_steps
    inputs = (rows.ctypes.data, rows.strides[0], scales.ctypes.data, offsets.ctypes.data, scales.shape[1])
    result, result_stride = out.ctypes.data, out.strides[0]
    for p in prange((num_columns + PANEL - 1) // PANEL):
        at = 4 * PANEL * p
        weights = (matrix[0] + p * panel_bytes, 4 * PANEL, matrix[1] + at * num_groups)
        target = (result + at, result_stride)
        panel_int8(num_rows, TILE, weights, inputs, num_groups, num_steps, target, matrix[2] + at, accumulate)


@compiled(fastmath=FAST)
def centre(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: np.float32, out: np.ndarray) -> None:
    """LayerNorm of one row."""
    total = np.float32(0.0)
    for i in range(len(x)):
        total += x[i]
    mean = total / np.float32(len(x))
    square = np.float32(0.0)
    for i in range(len(x)):
        square += (x[i] - mean) * (x[i] - mean)
    factor = np.float32(1.0) / np.sqrt(square / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = (x[i] - mean) * factor * weight[i] + bias[i]


@compiled(fastmath=FAST)
def gelu(x: np.ndarray) -> None:
    """GELU by tanh of one row, in place: x * sigmoid(2 u) is x / 2 * (1 + tanh(u))."""
    for i in range(len(x)):
        value = x[i]
        twice = np.float32(1.5957691216) * (value + np.float32(0.044715) * value * value * value)
        x[i] = value / (np.float32(1.0) + exponential(-twice))


@compiled(parallel=True)
def centre_rows(x, norm, eps, line, rows, scales, offsets, group_len):  # noqa: ANN001, ANN201
    """LayerNorm (weight and bias in `norm`) of x [n, H] into the input of a product."""
    for t in prange(len(x)):
        centre(x[t], norm[0], norm[1], eps, line[t, : x.shape[1]])
        hand_over(line[t, : x.shape[1]], rows[t], scales[t], offsets[t], group_len)


@compiled(parallel=True)
def gelu_rows(num_rows, values, rows, scales, offsets, group_len):  # noqa: ANN001, ANN201
    """GELU of [n, I] into the input of a product; overwrites `values`."""
    for t in prange(num_rows):
        gelu(values[t])
        hand_over(values[t], rows[t], scales[t], offsets[t], group_len)


@compiled(parallel=True)
def split_rows(num_rows, qkv, hidden_size, dim, queries, query_scales, query_offsets, keys, values):  # noqa: ANN001, ANN201
    """Of each row of `qkv` [n, 3 H]: queries in int8 with a scale for each head; keys and values as they are."""
    for t in prange(num_rows):
        row = qkv[t]
        hand_over(row[:hidden_size], queries[t], query_scales[t], query_offsets[t], dim)
        keys[t] = row[hidden_size : 2 * hidden_size]
        values[t] = row[2 * hidden_size : 3 * hidden_size]


@compiled(fastmath=FAST)
def _byte(scaled: np.float32) -> np.uint32:
    """The nearest whole number, plus 128."""
    return np.uint32(np.int32(scaled + np.float32(128.5)))


@compiled(fastmath=FAST)
def _mean_of(rows: np.ndarray, mean: np.ndarray) -> None:
    mean[:] = np.float32(0.0)
    for t in range(len(rows)):
        for d in range(rows.shape[1]):
            mean[d] += rows[t, d]
    for d in range(rows.shape[1]):
        mean[d] /= np.float32(len(rows))


@compiled(fastmath=FAST)
def _pack_key(key: np.ndarray, mean: np.ndarray, centred: np.ndarray, words: np.ndarray) -> np.float32:
    """One key's words, a panel's width apart; returns its scale."""
    peak = np.float32(0.0)
    for d in range(len(key)):
        centred[d] = key[d] - mean[d]
        peak = max(peak, abs(centred[d]))
    factor = np.float32(127.0) / max(peak, np.float32(1e-30))
    for step in range(len(key) // 4):
        d = 4 * step
        words[step * PANEL] = (
            _byte(centred[d] * factor)
            | (_byte(centred[d + 1] * factor) << np.uint32(8))
            | (_byte(centred[d + 2] * factor) << np.uint32(16))
            | (_byte(centred[d + 3] * factor) << np.uint32(24))
        )
    return peak / np.float32(127.0)


@compiled(fastmath=FAST)
def _pack_values(values: np.ndarray, words: np.ndarray, scales: np.ndarray, factors: np.ndarray) -> None:
    """One group of values [<= 64, 32] of a head as a panel's words [16 * 32]; absent rows are zeros."""
    scales[:] = np.float32(0.0)
    for t in range(len(values)):
        for c in range(PANEL):
            scales[c] = max(scales[c], abs(values[t, c]))
    for c in range(PANEL):
        factors[c] = np.float32(127.0) / max(scales[c], np.float32(1e-30))
        scales[c] /= np.float32(127.0)
    words[:] = np.uint32(0x80808080)
    for t in range(len(values)):
        here, shift = words[t // 4 * PANEL : (t // 4 + 1) * PANEL], np.uint32(8 * (t % 4))
        for c in range(PANEL):
            # What is there is 128 in this byte: exchanged by the difference in bits.
            here[c] ^= (_byte(values[t, c] * factors[c]) ^ np.uint32(128)) << shift


@compiled(parallel=True)
def pack_heads(keys, values, dim, key_words, key_scales, value_words, value_scales, scratch):  # noqa: ANN001, ANN201
    """Keys and values [n, H] as panels; a task is one head, or 32 columns and 64 patches of one.

    `key_words` [heads, panels, D / 4, 32] with `key_scales` [heads, panels * 32]; `value_words` [heads, D / 32, groups,
    16, 32] with `value_scales` [heads, D / 32, groups, 32].
    """
    num_heads = len(key_words)
    for head in prange(num_heads):
        mean, rest = scratch[get_thread_id(), :dim], scratch[get_thread_id(), dim:]
        mine = keys[:, head * dim : (head + 1) * dim]
        _mean_of(mine, mean)
        for t in range(len(keys)):
            words = key_words[head, t // PANEL].reshape(dim // 4 * PANEL)[t % PANEL :]
            key_scales[head, t] = _pack_key(mine[t], mean, rest[:dim], words)
        for panel in range(dim // PANEL):
            column = head * dim + panel * PANEL
            for group in range(value_words.shape[2]):
                some = values[group * KEYS_GROUP : (group + 1) * KEYS_GROUP, column : column + PANEL]
                words = value_words[head, panel, group].reshape(KEYS_GROUP // 4 * PANEL)
                _pack_values(some, words, value_scales[head, panel, group], rest[:PANEL])


@compiled(parallel=True)
def attend(first, end, dim, factor, queries, keys, values, scratch, outside, zeros, out):  # noqa: ANN001, ANN201
    """out [n, H] of queries first..end-1 over all keys. A task is 12 queries of a head.

    `queries` (int8 [n, H], scales and offsets [n, heads]), `keys` and `values` as `pack_heads` makes them, `scratch`
    for each thread scores and weights (int8) [12, padded n], their scales and offsets [12, groups]. Scores are
    multiplied by `factor` [1]; `outside` [padded n] is added: it is far below any score where there is no patch.
    """
    query_rows, query_scales, query_offsets = queries
    key_words, key_scales = keys
    value_words, value_scales = values
    all_scores, all_weights, all_scales, all_offsets = scratch
    num_heads = len(key_words)
    num_panels, num_groups = key_words.shape[1], value_words.shape[2]
    num_tiles = (end - first + TILE - 1) // TILE
    width = all_scores.shape[2]
    for task in prange(num_heads * num_tiles):
        head, row = task // num_tiles, first + task % num_tiles * TILE
        count = min(TILE, end - row)
        thread = get_thread_id()
        scores, weights, scales, offsets = (
            all_scores[thread], all_weights[thread], all_scales[thread], all_offsets[thread]
        )  # fmt: skip
        asked = (
            query_rows.ctypes.data + row * query_rows.shape[1] + head * dim, query_rows.shape[1],
            query_scales.ctypes.data + 4 * (row * num_heads + head),
            query_offsets.ctypes.data + 4 * (row * num_heads + head), num_heads,
        )  # fmt: skip
        for p in range(num_panels):
            panel = (
                key_words.ctypes.data + (head * num_panels + p) * dim * PANEL, 4 * PANEL,
                key_scales.ctypes.data + 4 * (head * num_panels + p) * PANEL,
            )  # fmt: skip
            target = (scores.ctypes.data + 4 * p * PANEL, 4 * width)
            panel_int8(count, TILE, panel, asked, 1, dim // 4, target, outside.ctypes.data + 4 * p * PANEL, 0)
        for r in range(count):
            soften(
                (
                    scores.ctypes.data + 4 * r * width, num_groups, factor.ctypes.data,
                    weights.ctypes.data + r * weights.shape[1], scales.ctypes.data + 4 * r * num_groups,
                    offsets.ctypes.data + 4 * r * num_groups,
                )
            )  # fmt: skip
        mixing = (
            weights.ctypes.data, weights.shape[1], scales.ctypes.data, offsets.ctypes.data, num_groups
        )  # fmt: skip
        for p in range(dim // PANEL):
            at = head * (dim // PANEL) + p
            panel = (
                value_words.ctypes.data + at * num_groups * KEYS_GROUP * PANEL, 4 * PANEL,
                value_scales.ctypes.data + 4 * at * num_groups * PANEL,
            )  # fmt: skip
            target = (out.ctypes.data + 4 * (row * out.shape[1] + head * dim + p * PANEL), 4 * out.shape[1])
            panel_int8(count, TILE, panel, mixing, num_groups, KEYS_GROUP // 4, target, zeros.ctypes.data, 0)


@compiled(parallel=True)
def hand_over_range(first, end, values, rows, scales, offsets, group_len):  # noqa: ANN001, ANN201
    """Rows first..end-1 of float values into the input of a product."""
    for t in prange(end - first):
        hand_over(values[first + t], rows[t], scales[t], offsets[t], group_len)


@compiled
def project(first, end, x, matrices, norm, sizes, eps, inputs, wide, queries, keys, values):  # noqa: ANN001, ANN201
    """Norm and queries, keys and values of patches first..end-1 of x [n, H]."""
    hidden_size, dim, group_len, _ = sizes
    line, rows, scales, offsets = inputs
    count = end - first
    centre_rows(x[first:end], norm, eps, line, rows, scales, offsets, group_len)
    multiply(count, 3 * hidden_size, group_len, matrices[QKV], rows, scales, offsets, wide, 0)
    query_rows, query_scales, query_offsets = queries
    split_rows(
        count, wide, hidden_size, dim, query_rows[first:end], query_scales[first:end], query_offsets[first:end],
        keys[first:end], values[first:end],
    )  # fmt: skip


@compiled
def finish(first, end, x, matrices, norm, sizes, eps, inputs, wide, attended):  # noqa: ANN001, ANN201
    """What follows attention, of patches first..end-1 of x [n, H], in place: its output, norm and the network."""
    hidden_size, _, group_len, intermediate_len = sizes
    line, rows, scales, offsets = inputs
    count, here = end - first, x[first:end]
    hand_over_range(first, end, attended, rows, scales, offsets, group_len)
    multiply(count, hidden_size, group_len, matrices[OUT], rows, scales, offsets, here, 1)
    centre_rows(here, norm, eps, line, rows, scales, offsets, group_len)
    multiply(count, wide.shape[1], group_len, matrices[UP], rows, scales, offsets, wide, 0)
    gelu_rows(count, wide, rows, scales, offsets, intermediate_len)
    multiply(count, hidden_size, intermediate_len, matrices[DOWN], rows, scales, offsets, here, 1)

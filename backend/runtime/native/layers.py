"""All layers of a step in one call: norms, projections, rotary positions, the pool, attention, the gated network."""

from __future__ import annotations

from numba import prange

from backend.runtime.native.elementwise import gate, normalise, rotate
from backend.runtime.native.likeliest import multiply_for_likeliest, pick_likeliest
from backend.runtime.native.paged import attend_chunk, attend_rows, lay_out
from backend.runtime.native.products import hand_over, multiply
from backend.runtime.native.shares import TALLY_BYTES, settle, take, take_next
from backend.runtime.native.vectors import compiled

ROWS_PER_TASK = 4
"""Where there is little to do a row, fewer are not worth taking."""
PHASES_PER_LAYER = 10
PHASES_PER_CHUNK = 2
"""Of each layer, for a chunk that attends in tiles."""
QKV, OUT, GATE_UP, DOWN = 0, 1, 2, 3


@compiled
def num_tasks_of(num_rows):  # noqa: ANN001, ANN201
    """Tasks of a phase that goes through rows."""
    return (num_rows + ROWS_PER_TASK - 1) // ROWS_PER_TASK


@compiled
def _normalise_row(t, x, weight, eps, line, rows, scales, offsets, group_len):  # noqa: ANN001, ANN202
    normalise(x[t], weight, eps, line[t, : x.shape[1]])
    hand_over(line[t, : x.shape[1]], rows[t], scales[t], offsets[t], group_len)


@compiled
def normalise_rows(tally, num_rows, x, weight, eps, line, rows, scales, offsets, group_len):  # noqa: ANN001, ANN201
    """RMSNorm of x [T, H] into the input of a product; `line` [T, >= H] keeps the float values."""
    num_tasks = num_tasks_of(num_rows)
    task = take(tally)
    while task < num_tasks:
        for t in range(task * ROWS_PER_TASK, min(num_rows, (task + 1) * ROWS_PER_TASK)):
            _normalise_row(t, x, weight, eps, line, rows, scales, offsets, group_len)
        task = take_next(tally)
    settle(tally, num_tasks)


@compiled
def _hand_over_row(t, values, size, rows, scales, offsets, group_len):  # noqa: ANN001, ANN202
    hand_over(values[t, :size], rows[t], scales[t], offsets[t], group_len)


@compiled
def hand_over_rows(tally, num_rows, values, size, rows, scales, offsets, group_len):  # noqa: ANN001, ANN201
    """Rows of `size` float values into the input of a product."""
    num_tasks = num_tasks_of(num_rows)
    task = take(tally)
    while task < num_tasks:
        for t in range(task * ROWS_PER_TASK, min(num_rows, (task + 1) * ROWS_PER_TASK)):
            _hand_over_row(t, values, size, rows, scales, offsets, group_len)
        task = take_next(tally)
    settle(tally, num_tasks)


@compiled
def _gate_row(t, gate_up, size, line, rows, scales, offsets, group_len):  # noqa: ANN001, ANN202
    gate(gate_up[t], line[t, :size])
    hand_over(line[t, :size], rows[t], scales[t], offsets[t], group_len)


@compiled
def gate_rows(tally, num_rows, gate_up, size, line, rows, scales, offsets, group_len):  # noqa: ANN001, ANN201
    """SiLU(gate) * up of [T, 2 I] into the input of a product."""
    num_tasks = num_tasks_of(num_rows)
    task = take(tally)
    while task < num_tasks:
        for t in range(task * ROWS_PER_TASK, min(num_rows, (task + 1) * ROWS_PER_TASK)):
            _gate_row(t, gate_up, size, line, rows, scales, offsets, group_len)
        task = take_next(tally)
    settle(tally, num_tasks)


@compiled
def _place_row(t, qkv, heads, norms, eps, cos, sin, flags, slot, keys, values):  # noqa: ANN001, ANN202
    num_heads, num_kv_heads, dim = heads
    row = qkv[t]
    for head in range(num_heads + num_kv_heads):
        here = row[head * dim : (head + 1) * dim]
        if flags[2]:
            normalise(here, norms[0 if head < num_heads else 1], eps, here)
        if flags[1]:
            rotate(here, cos, sin)
    width = num_kv_heads * dim
    keys[slot] = row[num_heads * dim : num_heads * dim + width]
    values[slot] = row[num_heads * dim + width : num_heads * dim + 2 * width]


@compiled
def place_rows(tally, num_rows, qkv, heads, norms, eps, cos, sin, positions, flags, slots, keys, values):  # noqa: ANN001, ANN201
    """Norm and turn queries and keys [T, (Hq + 2 Hkv) D] where they lie; write keys and values into the pool."""
    num_tasks = num_tasks_of(num_rows)
    task = take(tally)
    while task < num_tasks:
        for t in range(task * ROWS_PER_TASK, min(num_rows, (task + 1) * ROWS_PER_TASK)):
            at = positions[t]
            _place_row(t, qkv, heads, norms, eps, cos[at], sin[at], flags, slots[t], keys, values)
        task = take_next(tally)
    settle(tally, num_tasks)


@compiled
def _run_layers(  # noqa: ANN202
    thread,  # noqa: ANN001
    tally,  # noqa: ANN001
    x,  # noqa: ANN001
    step,  # noqa: ANN001
    model,  # noqa: ANN001
    pool,  # noqa: ANN001
    scratch,  # noqa: ANN001
    heads,  # noqa: ANN001
    sizes,  # noqa: ANN001
    group_lens,  # noqa: ANN001
    factors,  # noqa: ANN001
):
    """One thread's part of `run_layers`; `tally` is the address of the first phase's."""
    positions, slots, row_seqs, row_ends, tables, narrow, wide = step
    matrices, flags, norms, head_norms, last_norm, cos, sin = model
    rows, scales, offsets, line, qkv, attended, gate_up, scores, key_panels = scratch
    num_rows, hidden_size = x.shape
    num_heads, num_kv_heads, dim = heads
    intermediate_size, block_size, tallest = sizes
    qkv_size = (num_heads + 2 * num_kv_heads) * dim
    of_hidden, of_heads, of_intermediate = group_lens
    eps, head_eps, scale = factors
    for layer in range(len(matrices)):
        keys, values = pool[0][layer], pool[1][layer]
        window = flags[layer, 0]
        normalise_rows(tally, num_rows, x, norms[layer, 0], eps, line, rows, scales, offsets, of_hidden)
        tally += TALLY_BYTES
        multiply(tally, num_rows, tallest, qkv_size, of_hidden, matrices[layer, QKV], rows, scales, offsets, qkv, 0)
        tally += TALLY_BYTES
        place_rows(
            tally, num_rows, qkv, heads, head_norms[layer], head_eps, cos, sin, positions, flags[layer], slots, keys,
            values,
        )  # fmt: skip
        tally += TALLY_BYTES
        sequences = (keys, values, tables, block_size, row_seqs, row_ends)
        attend_rows(tally, thread, narrow, qkv, sequences, heads, tallest, window, scale, scores, attended)
        tally += TALLY_BYTES
        for chunk in range(len(wide)):
            start, count = wide[chunk]
            first = max(0, row_ends[start] - window) if window > 0 else 0
            lay_out(tally, start, count, sequences, heads, first, key_panels)
            tally += TALLY_BYTES
            attend_chunk(
                tally, thread, start, count, qkv, sequences, heads, (tallest, first), window, scale, key_panels, scores,
                attended,
            )  # fmt: skip
            tally += TALLY_BYTES
        hand_over_rows(tally, num_rows, attended, num_heads * dim, rows, scales, offsets, of_heads)
        tally += TALLY_BYTES
        multiply(tally, num_rows, tallest, hidden_size, of_heads, matrices[layer, OUT], rows, scales, offsets, x, 1)
        tally += TALLY_BYTES
        normalise_rows(tally, num_rows, x, norms[layer, 1], eps, line, rows, scales, offsets, of_hidden)
        tally += TALLY_BYTES
        multiply(
            tally, num_rows, tallest, 2 * intermediate_size, of_hidden, matrices[layer, GATE_UP], rows, scales,
            offsets, gate_up, 0,
        )  # fmt: skip
        tally += TALLY_BYTES
        gate_rows(tally, num_rows, gate_up, intermediate_size, line, rows, scales, offsets, of_intermediate)
        tally += TALLY_BYTES
        multiply(
            tally, num_rows, tallest, hidden_size, of_intermediate, matrices[layer, DOWN], rows, scales, offsets, x, 1
        )
        tally += TALLY_BYTES
    num_tasks = num_tasks_of(num_rows)
    task = take(tally)
    while task < num_tasks:
        for t in range(task * ROWS_PER_TASK, min(num_rows, (task + 1) * ROWS_PER_TASK)):
            normalise(x[t], last_norm, eps, x[t])
        task = take_next(tally)
    settle(tally, num_tasks)


def num_phases(num_layers: int, num_wide: int) -> int:
    """Phases of a step with `num_wide` chunks that attend in tiles."""
    return num_layers * (PHASES_PER_LAYER + PHASES_PER_CHUNK * num_wide) + 1


@compiled(parallel=True)
def run_layers(  # noqa: ANN201
    num_threads,  # noqa: ANN001
    tallies,  # noqa: ANN001  zeros, `TALLY_BYTES` for each of `num_phases`
    x,  # noqa: ANN001  float32 [T, H]: embeddings in, final-normed hidden states out
    step,  # noqa: ANN001  positions, slots, row_seqs, row_ends, tables, narrow rows, wide chunks
    model,  # noqa: ANN001  matrices, flags, norms, head norms, last norm, cos, sin
    pool,  # noqa: ANN001  keys, values [layer, slot, Hkv * D]
    scratch,  # noqa: ANN001  see `NativeText._reserve`
    heads,  # noqa: ANN001  (Hq, Hkv, D)
    sizes,  # noqa: ANN001  (intermediate size, block size, tallest tile)
    group_lens,  # noqa: ANN001  of H, of Hq * D, of the intermediate size
    factors,  # noqa: ANN001  float32: norm eps, head norm eps, attention scale
):
    """Compute every layer for the T rows of one step, in place."""
    for thread in prange(num_threads):
        _run_layers(thread, tallies.ctypes.data, x, step, model, pool, scratch, heads, sizes, group_lens, factors)


HEAD_PHASES = 2


@compiled
def _run_head(tally, hidden, matrix, vocab_size, tallest, group_len, scratch, logits, kept):  # noqa: ANN001, ANN202
    rows, scales, offsets = scratch
    num_rows = len(hidden)
    hand_over_rows(tally, num_rows, hidden, hidden.shape[1], rows, scales, offsets, group_len)
    tally += TALLY_BYTES
    if len(logits) > 0:
        multiply(tally, num_rows, tallest, vocab_size, group_len, matrix, rows, scales, offsets, logits, 0)
    else:
        multiply_for_likeliest(tally, num_rows, tallest, vocab_size, group_len, matrix, rows, scales, offsets, *kept)


@compiled(parallel=True)
def run_head(  # noqa: ANN201
    num_threads,  # noqa: ANN001
    tallies,  # noqa: ANN001  zeros, `TALLY_BYTES` for each of `HEAD_PHASES`
    hidden,  # noqa: ANN001
    matrix,  # noqa: ANN001
    vocab_size,  # noqa: ANN001
    tallest,  # noqa: ANN001
    group_len,  # noqa: ANN001
    scratch,  # noqa: ANN001  the first three of `run_layers`
    logits,  # noqa: ANN001  without rows: the likeliest tokens are wanted
    kept,  # noqa: ANN001  of each thread the last three arguments of `multiply_for_likeliest`
    picked,  # noqa: ANN001
):
    """Of final-normed hidden states [n, H] the logits [n, >= V], or the likeliest tokens int64 [n].

    One function for both, so that whoever has called it once has it compiled for the other, too.
    """
    values, best, ids = kept
    for thread in prange(num_threads):
        mine = (values[thread], best[thread], ids[thread])
        _run_head(tallies.ctypes.data, hidden, matrix, vocab_size, tallest, group_len, scratch, logits, mine)
    pick_likeliest(best, ids, picked)

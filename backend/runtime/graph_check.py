"""Graphs are recorded and compared with what they stand for before anybody is served by them.

Each is tried on a made-up step over a pool of noise: rows of padding, a sequence with a guess, contexts of all lengths.
One that cannot be recorded, or gives something else, means that none is used.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from backend.runtime.attention.base import AttentionInputs
from backend.runtime.closeness import MAX_ERROR, relative_error
from backend.runtime.graphs import GraphedText, Recorder, Size
from backend.runtime.upload import upload

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter
    from backend.runtime.kv_pool import KvPool
    from backend.runtime.text_backend import TextBackend


def with_graphs(
    behind: TextBackend, adapter: ModelAdapter, pool: KvPool, recorder: Recorder, say: Callable[[str], None]
) -> TextBackend:
    """`behind` with graphs before it, or `behind` alone; says in one line which, and why.

    The pool is all zeros afterwards.
    """
    graphed = GraphedText(behind, adapter, pool)
    if not graphed.sizes:
        return behind
    rng = random.Random(0)
    try:
        with torch.inference_mode():
            # The largest first: smaller ones then find memory in what it left.
            for size in reversed(graphed.sizes):
                graphed.record(size, recorder)
            pool.fill_with_noise()
            for size in graphed.sizes:
                error = _error(graphed, behind, adapter, pool, size, rng)
                if not error <= MAX_ERROR[adapter.dtype]:
                    raise ArithmeticError(f"the one of {size} tokens is off by {error:.1%}")
    except Exception as error:  # drivers and libraries raise many unrelated types; none of them may prevent a start
        say(f"Decode graphs: none, every step runs eagerly; {str(error).partition(chr(10))[0] or type(error).__name__}")
        return behind
    finally:
        pool.clear()
    rows, keys = max(size.rows for size in graphed.sizes), max(size.keys for size in graphed.sizes)
    say(f"Decode graphs: {len(graphed.sizes)}, for up to {rows} tokens a step and contexts of up to {keys}")
    return graphed


def _error(
    graphed: GraphedText, behind: TextBackend, adapter: ModelAdapter, pool: KvPool, size: Size, rng: random.Random
) -> float:
    """How far the hidden states of the graph of `size` are off on a made-up step."""
    embeds, positions, inputs = _made_up(adapter, pool, size, rng)
    expected = behind.forward(embeds.clone(), positions, inputs)
    return relative_error(graphed.replay(size, embeds, positions, inputs), expected)


def _made_up(
    adapter: ModelAdapter, pool: KvPool, size: Size, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor, AttentionInputs]:
    """Three quarters of the rows: decodes, the first with a guess behind it. No two of them write one slot."""
    num_rows = max(1, size.rows * 3 // 4)
    lens = [2, *[1] * (num_rows - 2)] if num_rows > 1 else [1]
    most = min(size.keys, (pool.num_blocks - 1) * pool.block_size)
    kv_lens = [most, *(rng.randint(1, most) for _ in lens[1:])]
    # The last two blocks of each are its own; what lies before them is only read, and may be anybody's.
    own = rng.sample(range(pool.num_blocks - 1), 2 * len(lens))
    tables: list[tuple[int, ...]] = []
    slots: list[int] = []
    for seq, kv_len in enumerate(kv_lens):
        num_blocks = -(-kv_len // pool.block_size)
        others = [rng.randrange(pool.num_blocks - 1) for _ in range(num_blocks - 2)]
        tables.append(tuple([*others, *own[2 * seq : 2 * seq + 2]][-num_blocks:]))
        slots += [
            tables[seq][i // pool.block_size] * pool.block_size + i % pool.block_size
            for i in range(kv_len - lens[seq], kv_len)
        ]
    starts = tuple(sum(lens[:seq]) for seq in range(len(lens) + 1))
    indices = [i for kv_len, n in zip(kv_lens, lens, strict=True) for i in range(kv_len - n, kv_len)]
    ids = [rng.randrange(adapter.spec.vocab_size) for _ in range(num_rows)]
    upload_ids = lambda values: upload(values, torch.int64, pool.device)  # noqa: E731
    inputs = AttentionInputs(starts, tuple(kv_lens), tuple(tables), upload_ids(slots))
    return adapter.embed(upload_ids(ids)), upload_ids([indices] * adapter.spec.num_position_rows), inputs

"""What must hold between any two calls of the scheduler; slow, for tests and for a suspicious operator."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from backend.sched.blocks import BlockPool
from backend.sched.sequence import SeqState, Sequence


def check_sequences(
    alive: Collection[Sequence], running: Seq[Sequence], waiting: Seq[Sequence], pool: BlockPool
) -> None:
    """Raise AssertionError unless every living sequence is in one place, in a fitting state, with its blocks."""
    assert sorted(map(id, alive)) == sorted(map(id, [*running, *waiting])), "a request is lost or in two places"
    for seq in waiting:
        assert seq.is_queued, f"{seq} waits in another state"
        assert seq.computed == 0, f"{seq} waits with KV"
        assert len(seq.table) == 0, f"{seq} waits with blocks"
    for seq in running:
        assert seq.state is SeqState.RUNNING, f"{seq} runs in another state"
        assert seq.remaining > 0, f"{seq} has nothing left to compute"
        _check_blocks(seq, pool)
    pool.check(seq.table for seq in alive)


def _check_blocks(seq: Sequence, pool: BlockPool) -> None:
    assert seq.table.num_missing(seq.computed) == 0, f"{seq} has KV without blocks"
    keys = seq.block_keys(min(seq.computed, seq.num_known) // pool.block_size)
    for block_id, key in zip(seq.table.block_ids, keys, strict=False):
        known = pool.index.key_of(block_id)
        assert known is None or known == key, f"{seq}: block {block_id} is known as another prefix"

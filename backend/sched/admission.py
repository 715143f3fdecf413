"""Who may join the running, and how far guesses may reach: questions of blocks, asked without changing anything."""

from __future__ import annotations

from collections.abc import Iterable

from backend.sched.blocks import BlockPool
from backend.sched.chunking import hit_len
from backend.sched.sequence import Sequence


def find_prefix(seq: Sequence, pool: BlockPool) -> list[int]:
    """Cached blocks that `seq` can begin with; its last token is never among them, because it has to sample."""
    hit = pool.index.find(seq.block_keys((seq.total - 1) // pool.block_size))
    return hit[: hit_len(seq, len(hit)) // pool.block_size]


def has_blocks_for(seq: Sequence, hit: list[int], running: Iterable[Sequence], pool: BlockPool) -> bool:
    """Whether all tokens of `seq` find room behind `hit`, beside those that the running have still to compute.

    So nobody is admitted while somebody running is short of blocks (R3): what the running miss is spoken for.
    """
    needed = pool.blocks_for(seq.total) - len(hit) + pool.num_idle(hit)
    return needed + _num_spoken_for(running) <= pool.num_free


def guess_room(seq: Sequence, num_guesses: int, running: Iterable[Sequence], pool: BlockPool) -> int:
    """How many of `num_guesses` tokens behind its last find room, in its blocks or in ones that nobody counts on."""
    if not num_guesses:
        return 0
    missing = seq.table.num_missing(seq.total + num_guesses)
    if not missing:
        return num_guesses
    spare = max(0, pool.num_free - _num_spoken_for(running))
    return min(num_guesses, max(0, (len(seq.table) + min(missing, spare)) * pool.block_size - seq.total))


def _num_spoken_for(running: Iterable[Sequence]) -> int:
    """Blocks that tokens of the running have still to take."""
    return sum(other.table.num_missing(other.total) for other in running)


def choose_victims(seq: Sequence, num_blocks: int, candidates: Iterable[Sequence], pool: BlockPool) -> list[Sequence]:
    """Whom to preempt so that `seq` finds `num_blocks` free blocks: the least urgent first, nobody as urgent as `seq`.

    All or nothing (R2): if even all of them would not do, the answer is nobody.
    """
    victims: list[Sequence] = []
    for other in sorted(candidates, key=lambda candidate: candidate.priority, reverse=True):
        if other.priority <= seq.priority:
            break
        victims.append(other)
        if pool.num_free + pool.num_freed_by(victim.table for victim in victims) >= num_blocks:
            return victims
    return []

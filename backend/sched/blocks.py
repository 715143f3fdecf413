"""Paged KV blocks as numbers: who holds which, which are free, and which free ones still hold a known prefix.

    free ──take──► held (references >= 1) ──last release──► free, or, if the index knows its content, cached
    cached ──share──► held            cached ──take, the least recently used first──► held, forgotten by the index

The pool never touches memory: the runner keeps the tensors. Only full blocks are ever shared, and a shared block is
never written again, because a table only grows at its end.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

BlockImages = tuple[tuple[int, int, str, int], ...]
"""Image spans that reach into a block: (start relative to the block, length, image key, first row)."""


@dataclass(frozen=True)
class BlockKey:
    """What a full block's KV depends on: everything before it, its tokens, and the images behind its placeholders.

    Placeholders alone would let two images under one prompt share KV. Keys compare by content; `parent` is the digest
    of the block before (empty for the first).
    """

    parent: bytes
    token_ids: tuple[int, ...]
    images: BlockImages

    @cached_property
    def digest(self) -> bytes:
        """The whole prefix up to and including this block, in 16 bytes."""
        content = repr((self.parent, self.token_ids, self.images)).encode()
        return hashlib.blake2b(content, digest_size=16).digest()


class PrefixIndex:
    """Blocks by the prefix they hold, one block per prefix."""

    def __init__(self) -> None:
        self._block_by_key: dict[BlockKey, int] = {}
        self._key_by_block: dict[int, BlockKey] = {}

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._key_by_block

    def find(self, keys: Iterable[BlockKey]) -> list[int]:
        """Blocks that hold the longest known run of `keys`, from the first on.

        The dictionary's own lookup is the check that a hit is real: it compares contents where hashes agree.
        """
        found: list[int] = []
        for key in keys:
            block_id = self._block_by_key.get(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def add(self, block_id: int, key: BlockKey) -> None:
        """Remember that `block_id` holds `key`; the first block to hold a prefix keeps the name."""
        if key not in self._block_by_key and block_id not in self._key_by_block:
            self._block_by_key[key] = block_id
            self._key_by_block[block_id] = key

    def forget(self, block_id: int) -> None:
        """Drop a block whose content is about to be overwritten."""
        del self._block_by_key[self._key_by_block.pop(block_id)]

    def key_of(self, block_id: int) -> BlockKey | None:
        """The prefix that `block_id` holds, if it is known."""
        return self._key_by_block.get(block_id)

    def check(self) -> None:
        """Raise AssertionError unless both directions agree."""
        assert self._block_by_key == {key: block for block, key in self._key_by_block.items()}, (
            "index is not one to one"
        )


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, counted by reference."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.index = PrefixIndex()
        self._references = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks held by some table."""
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def num_idle(self, block_ids: Iterable[int]) -> int:
        """How many of `block_ids` nobody holds: sharing them costs a free block each."""
        return sum(self._references[block_id] == 0 for block_id in block_ids)

    def num_freed_by(self, tables: Iterable[BlockTable]) -> int:
        """Blocks that would become free if all `tables` were released."""
        held = Counter(block_id for table in tables for block_id in table.block_ids)
        return sum(count == self._references[block_id] for block_id, count in held.items())

    def take(self, num_blocks: int) -> list[int]:
        """Blocks with nothing in them, the least recently used cached ones last. There must be enough."""
        assert num_blocks <= self.num_free, f"{num_blocks} blocks wanted, {self.num_free} free"
        taken: list[int] = []
        for _ in range(num_blocks):
            if self._free:
                block_id = self._free.popleft()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self.index.forget(block_id)
            self._references[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Hold blocks that the index knows once more."""
        for block_id in block_ids:
            self._cached.pop(block_id, None)
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Let go of a table's blocks. The tail is let go first, so that it is overwritten before what leads to it."""
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, f"block {block_id} is released but nobody holds it"
            self._references[block_id] -= 1
            if self._references[block_id] > 0:
                continue
            if block_id in self.index:
                self._cached[block_id] = None
            else:
                self._free.append(block_id)

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Raise AssertionError unless `tables` explain every reference and every block is in exactly one place."""
        held = Counter(block_id for table in tables for block_id in table.block_ids)
        assert self._references == [held[block_id] for block_id in range(self.num_blocks)], "references without holders"
        places = sorted([*self._free, *self._cached, *held])
        assert places == list(range(self.num_blocks)), "a block is lost or in two places"
        assert all(block_id in self.index for block_id in self._cached), "a cached block is unknown to the index"
        assert not any(block_id in self.index for block_id in self._free), "a free block is known to the index"
        shared = [block_id for block_id, count in held.items() if count > 1]
        assert all(block_id in self.index for block_id in shared), "a shared block is unknown to the index"
        self.index.check()


class BlockTable:
    """One sequence's blocks, in order of its tokens. It only grows at the end, until it is released as a whole.

    `num_published` counts the blocks at its beginning whose content the index was told.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_ids: list[int] = []
        self._snapshot: tuple[int, ...] = ()
        self.num_published = 0

    def __len__(self) -> int:
        return len(self._block_ids)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The blocks; the same tuple for as long as there are no more."""
        if len(self._snapshot) != len(self._block_ids):
            self._snapshot = tuple(self._block_ids)
        return self._snapshot

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._pool.block_size

    @property
    def room(self) -> int:
        """Tokens that this table could hold at most if it took every free block."""
        return (len(self._block_ids) + self._pool.num_free) * self._pool.block_size

    def num_missing(self, num_tokens: int) -> int:
        """Blocks to be taken before the table holds `num_tokens` tokens."""
        return max(0, self._pool.blocks_for(num_tokens) - len(self._block_ids))

    def grow_to(self, num_tokens: int) -> None:
        """Take blocks until the table holds `num_tokens` tokens."""
        num_blocks = self.num_missing(num_tokens)
        if num_blocks:
            self._block_ids += self._pool.take(num_blocks)

    def share(self, block_ids: Sequence[int]) -> None:
        """Begin with blocks that hold this sequence's first tokens already; only an empty table can."""
        assert not self._block_ids, "a table shares blocks at its beginning only"
        self._pool.share(block_ids)
        self._block_ids += block_ids

    def publish(self, keys: Sequence[BlockKey]) -> None:
        """Tell the index what the first `len(keys)` blocks hold, now that it is written."""
        for i in range(self.num_published, len(keys)):
            self._pool.index.add(self._block_ids[i], keys[i])
        self.num_published = max(self.num_published, len(keys))

    def release(self) -> None:
        """Give everything back."""
        self._pool.release(self._block_ids)
        self._block_ids, self._snapshot = [], ()
        self.num_published = 0

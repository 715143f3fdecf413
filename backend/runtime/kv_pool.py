"""The paged key-value pool: one K and one V tensor per layer, addressed by flat slots.

A slot is `block_id * block_size + offset`. Who owns which block is the scheduler's business and nobody here knows it;
the pool writes where it is told and reads what it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from backend.models.adapter import ModelSpec
    from backend.types.step import Chunk

VECTOR_SLACK = 64


def bytes_per_block(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block's keys and values over all layers."""
    return 2 * spec.num_layers * block_size * spec.num_kv_heads * spec.head_dim * dtype.itemsize


def spare_bytes(dtype: torch.dtype) -> int:
    """Bytes that a pool takes beside its blocks."""
    return 2 * VECTOR_SLACK * dtype.itemsize


class KvPool:
    """Keys and values [layer, slot, Hkv * D] of `num_blocks` blocks. Owned and used by the engine thread alone."""

    def __init__(
        self, spec: ModelSpec, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        self.dtype = dtype
        self.device = device
        # One row per slot: gathering whole rows is twice as fast on a CPU as indexing the three-dimensional tensor.
        # Zeros, not uninitialised memory: a padded gather reads slots nobody wrote, and a NaN would survive its mask.
        shape = (spec.num_layers, num_blocks * block_size, spec.num_kv_heads * spec.head_dim)
        self.keys, self.values = (_zeros(shape, dtype, device) for _ in range(2))
        self._spoiled: set[int] = set()

    def write(self, layer_idx: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key and value [Hkv, T, D] (any strides) at `slots` int64 [T]."""
        self.keys[layer_idx].index_copy_(0, slots, key.transpose(0, 1).reshape(len(slots), -1))
        self.values[layer_idx].index_copy_(0, slots, value.transpose(0, 1).reshape(len(slots), -1))

    def spoil(self, block_ids: Iterable[int]) -> None:
        """Note that these blocks may hold what is no finite number."""
        self._spoiled.update(block_ids)

    def heal(self, chunks: Iterable[Chunk]) -> None:
        """Clear those spoiled blocks that these chunks write from their first slot on, and so begin anew.

        Whoever shares a block for what it holds writes behind it: for them it stays what it is.
        """
        if not self._spoiled:
            return
        size = self.block_size
        begun = {i for c in chunks for i in c.block_ids[-(-c.start // size) : -(-(c.start + c.num_tokens) // size)]}
        healed = sorted(begun & self._spoiled)
        self._spoiled.difference_update(healed)
        for tensor in (self.keys, self.values):
            for block_id in healed:
                tensor[:, block_id * size : (block_id + 1) * size] = 0

    def fill_with_noise(self) -> None:
        """Random numbers everywhere, for a comparison that stale or foreign slots would spoil."""
        for tensor in (self.keys, self.values):
            tensor.normal_()

    def clear(self) -> None:
        """Zeros everywhere, as at first."""
        for tensor in (self.keys, self.values):
            tensor.zero_()

    def gather(self, layer_idx: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at `slots` int64 [..., L] as [..., Hkv, L, D]: copies, safe to keep."""
        shape = (*slots.shape, self.num_kv_heads, self.head_dim)
        flat = slots.reshape(-1)
        key = self.keys[layer_idx].index_select(0, flat).view(shape)
        value = self.values[layer_idx].index_select(0, flat).view(shape)
        return key.transpose(-2, -3), value.transpose(-2, -3)


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros with some more behind them: compiled loops read whole vectors, beyond the last head of the last slot."""
    size = shape[0] * shape[1] * shape[2]
    return torch.zeros(size + VECTOR_SLACK, dtype=dtype, device=device)[:size].view(shape)

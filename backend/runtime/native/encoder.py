"""Blocks of a vision transformer computed by compiled loops with int8 products, in slices like the blocks they replace.

A block runs in two passes over ranges of patches, because attention needs everybody's keys: norms and projections of
all, then attention, output and network, range by range. Between ranges it may pause, while another picture's call runs
the same block: what must outlive a pause is in a `_Call`, of which each call under way has its own.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch

from backend.runtime.native.packing import PANEL, aligned, group_len
from backend.runtime.native.vision import KEYS_GROUP, TILE, attend, finish, pack_heads, project
from backend.runtime.native.vision_weights import pack_block

if TYPE_CHECKING:
    from backend.models.adapter import BlockParts, Pacer

_NUM_SAMPLES = 8
_FAR_BELOW = -1e30
"""The score of a patch that is not there."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a tower's blocks and of the memory that one thread's part of attention takes."""

    num_patches: int
    hidden_size: int
    num_heads: int
    intermediate_size: int

    @property
    def dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_panels(self) -> int:
        """Panels of keys: whole groups of them."""
        return self.num_groups * (KEYS_GROUP // PANEL)

    @property
    def num_groups(self) -> int:
        return -(-self.num_patches // KEYS_GROUP)


class _Call:
    """Queries, keys, values and the result of attention of one picture in one block."""

    def __init__(self, shape: _Shape) -> None:
        n, hidden_size, num_heads, dim = shape.num_patches, shape.hidden_size, shape.num_heads, shape.dim
        self.queries = (
            aligned([n, hidden_size], np.int8),
            aligned([n, num_heads], np.float32),
            aligned([n, num_heads], np.int32),
        )
        self.keys, self.values = aligned([n, hidden_size], np.float32), aligned([n, hidden_size], np.float32)
        self.packed_keys = (
            aligned([num_heads, shape.num_panels, dim // 4, PANEL], np.uint32),
            aligned([num_heads, shape.num_panels * PANEL], np.float32),
        )
        columns = dim // PANEL
        self.packed_values = (
            aligned([num_heads, columns, shape.num_groups, KEYS_GROUP // 4, PANEL], np.uint32),
            aligned([num_heads, columns, shape.num_groups, PANEL], np.float32),
        )
        self.attended = aligned([n, hidden_size], np.float32)


class Workshop:
    """What the blocks of one tower share: sizes, pace and memory. Engine thread only."""

    def __init__(self, num_patches: int, block: BlockParts, pacer: Pacer) -> None:
        self.shape = shape = _Shape(num_patches, len(block.norm1.weight), block.num_heads, len(block.up.weight))
        self.pacer = pacer
        lengths = [group_len(size) for size in (shape.hidden_size, shape.intermediate_size)]
        self.sizes = (shape.hidden_size, shape.dim, lengths[0], lengths[1])
        most_groups = max(shape.hidden_size // lengths[0], shape.intermediate_size // lengths[1])
        self._free: list[_Call] = []
        n, widest = shape.num_patches, max(shape.hidden_size, shape.intermediate_size)
        self.num_threads = threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        self.inputs = (
            aligned([n, shape.hidden_size], np.float32),
            aligned([n, widest], np.int8),
            aligned([n, most_groups], np.float32),
            aligned([n, most_groups], np.int32),
        )
        self.qkv = aligned([n, 3 * shape.hidden_size], np.float32)
        self.inner = aligned([n, shape.intermediate_size], np.float32)
        self.heads = aligned([threads, 2 * shape.dim + PANEL], np.float32)
        self.scratch = (
            aligned([threads, TILE, shape.num_panels * PANEL], np.float32),
            aligned([threads, TILE, shape.num_groups * KEYS_GROUP], np.int8),
            aligned([threads, TILE, shape.num_groups], np.float32),
            aligned([threads, TILE, shape.num_groups], np.int32),
        )
        self.zeros = aligned([PANEL], np.float32)
        self.outside = aligned([shape.num_panels * PANEL], np.float32)
        self.outside[n:] = _FAR_BELOW
        self.pace = Pace()

    def take(self) -> _Call:
        """Memory for one call; `give` it back."""
        return self._free.pop() if self._free else _Call(self.shape)

    def give(self, call: _Call) -> None:
        """Take it back."""
        self._free.append(call)


@dataclass(slots=True)
class Pace:
    """Seconds of a block's parts: of one patch in either pass, and of packing keys and values in between."""

    project_s: float = 0.0
    pack_s: float = 0.0
    finish_s: float = 0.0


class NativeBlock(torch.nn.Module):
    """Computes one SigLIP-shaped block on hidden states [1, num_patches, H], float32, which it overwrites."""

    def __init__(self, workshop: Workshop, block: BlockParts) -> None:
        super().__init__()
        self._shop = workshop
        self._weights = pack_block(block)

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """The block's outputs. Any mask is None: a tile has no padding."""
        shop, pace = self._shop, self._shop.pace
        states = hidden_states.contiguous()
        x, call = states[0].numpy(), shop.take()
        try:
            for first, end in self._ranges(pace.project_s):
                self._project(x, call, first, end)
            shop.pacer.spend(pace.pack_s)
            self._pack(call)
            for first, end in self._ranges(pace.finish_s):
                self._finish(x, call, first, end)
        finally:
            shop.give(call)
        return states

    def measure(self) -> None:
        """Set the pace of all blocks of this tower by this one's."""
        shop = self._shop
        shape = shop.shape
        rows = min(shape.num_patches, 128)
        size = (shape.num_patches, shape.hidden_size)
        x, call = np.random.default_rng(0).standard_normal(size, np.float32), _Call(shape)
        shop.pace.project_s = _shortest(lambda: self._project(x, call, 0, rows)) / rows
        shop.pace.pack_s = _shortest(lambda: self._pack(call))
        shop.pace.finish_s = _shortest(lambda: self._finish(x, call, 0, rows)) / rows

    def _ranges(self, row_s: float) -> Any:
        """Ranges of patches that take a slice at most, each announced to the pacer before it is computed."""
        num_patches, slice_s = self._shop.shape.num_patches, self._shop.pacer.slice_s
        num_ranges = max(1, min(-(-num_patches // TILE), math.ceil(num_patches * row_s / slice_s)))
        length = -(-num_patches // num_ranges // TILE) * TILE
        for first in range(0, num_patches, length):
            end = min(first + length, num_patches)
            self._shop.pacer.spend((end - first) * row_s)
            yield first, end

    def _project(self, x: np.ndarray, call: _Call, first: int, end: int) -> None:
        shop, weights = self._shop, self._weights
        numba.set_num_threads(shop.num_threads)
        project(
            first, end, x, weights.matrices, weights.norms[0], shop.sizes, weights.eps[0], shop.inputs, shop.qkv,
            call.queries, call.keys, call.values,
        )  # fmt: skip

    def _pack(self, call: _Call) -> None:
        numba.set_num_threads(self._shop.num_threads)
        pack_heads(
            call.keys, call.values, self._shop.shape.dim, *call.packed_keys, *call.packed_values, self._shop.heads
        )

    def _finish(self, x: np.ndarray, call: _Call, first: int, end: int) -> None:
        shop, weights = self._shop, self._weights
        numba.set_num_threads(shop.num_threads)
        attend(
            first, end, shop.shape.dim, weights.factor, call.queries, call.packed_keys, call.packed_values,
            shop.scratch, shop.outside, shop.zeros, call.attended,
        )  # fmt: skip
        finish(
            first, end, x, weights.matrices, weights.norms[1], shop.sizes, weights.eps[1], shop.inputs, shop.inner,
            call.attended,
        )  # fmt: skip


def _shortest(work: Any) -> float:
    """Seconds of this thread's own processor time, in the best of a few runs."""
    timed = []
    for _ in range(1 + _NUM_SAMPLES):
        begin = time.thread_time()
        work()
        timed.append(time.thread_time() - begin)
    return min(timed[1:])

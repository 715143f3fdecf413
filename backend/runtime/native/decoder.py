"""The compiled text backend: a step's tensors into arrays, one call for all layers, one for the logits.

Rows and sequences are worked out here once per step; memory for intermediate results is kept between steps and grows
with the largest. Runs on the engine thread alone.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch

from backend.runtime.native.layers import HEAD_PHASES, num_phases, run_head, run_layers
from backend.runtime.native.packing import PANEL, Numbers, aligned
from backend.runtime.native.paged import TILE_ROWS
from backend.runtime.native.shares import TALLY_BYTES
from backend.runtime.native.weights import pack_text

if TYPE_CHECKING:
    from backend.models.adapter import TextParts
    from backend.runtime.attention.base import AttentionInputs
    from backend.runtime.kv_pool import KvPool

WIDE_CHUNK = 8
"""A chunk of at least this many tokens attends in tiles; a shorter one row by row."""
TALLEST_TILE = 12
TABLE_STEP = 1024
"""Rotary tables grow by this many positions."""


class NativeText:
    """`TextBackend` by compiled loops over packed weights, in float32 or with int8 products of int8 or int4 weights."""

    def __init__(self, parts: TextParts, pool: KvPool, numbers: Numbers) -> None:
        self._weights = pack_text(parts, numbers)
        self._rotary: Any = parts.decoder.rotary_emb
        self._pool = (pool.keys.numpy(), pool.values.numpy())
        self._block_size = pool.block_size
        self._rows_kind = np.float32 if numbers == "float32" else np.int8
        # The mask of numba's threads belongs to the calling thread, so it is set at each step.
        self._num_threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        self._cos, self._sin = np.empty((2, 0, self._weights.heads[2]), np.float32)
        self._rows_held = self._keys_held = 0
        self._tallies = aligned([0, TALLY_BYTES], np.int8)

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """See `TextBackend.forward`. Overwrites `embeds`."""
        weights = self._weights
        x = embeds.contiguous().numpy()
        places = positions[0].contiguous().numpy()
        self._reserve(len(x), max(inputs.kv_lens))
        self._extend_rotary(int(places.max()) + 1)
        numba.set_num_threads(self._num_threads)
        rows = _rows_of(inputs)
        run_layers(
            self._num_threads,
            self._fresh_tallies(num_phases(len(weights.matrices), len(rows[-1]))),
            x,
            (places, inputs.slots.numpy(), *rows),
            (
                weights.matrices,
                weights.flags,
                weights.norms,
                weights.head_norms,
                weights.last_norm,
                self._cos,
                self._sin,
            ),
            self._pool,
            self._scratch,
            weights.heads,
            (weights.intermediate_size, self._block_size, TALLEST_TILE),
            weights.group_lens,
            weights.factors,
        )
        return torch.from_numpy(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TextBackend.logits`."""
        logits = np.empty((len(hidden), len(self._weights.head.bias)), np.float32)
        self._run_head(hidden, logits, num_picked=0)
        return torch.from_numpy(logits)[:, : self._weights.vocab_size]

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TextBackend.likeliest`."""
        no_logits = np.empty((0, len(self._weights.head.bias)), np.float32)
        return torch.from_numpy(self._run_head(hidden, no_logits, num_picked=len(hidden)))

    def _run_head(self, hidden: torch.Tensor, logits: np.ndarray, *, num_picked: int) -> np.ndarray:
        """Fill `logits`, or, where that has no rows, return the likeliest token of each of `num_picked` rows."""
        each = [self._num_threads, num_picked]
        picked = np.empty(num_picked, np.int64)
        numba.set_num_threads(self._num_threads)
        run_head(
            self._num_threads,
            self._fresh_tallies(HEAD_PHASES),
            hidden.contiguous().numpy(),
            np.array(self._weights.head.addresses, np.int64),
            self._weights.vocab_size,
            TALLEST_TILE,
            self._weights.group_lens[0],
            self._scratch[:3],
            logits,
            (aligned([*each, PANEL], np.float32), np.full(each, -np.inf, np.float32), np.zeros(each, np.int64)),
            picked,
        )
        return picked

    def _reserve(self, num_rows: int, num_keys: int) -> None:
        """Memory for a step of this many rows and keys of one sequence."""
        if num_rows <= self._rows_held and num_keys <= self._keys_held:
            return
        self._rows_held = num_rows = max(num_rows, self._rows_held)
        self._keys_held = num_keys = max(2 * num_keys, self._keys_held)
        weights = self._weights
        num_heads, num_kv_heads, dim = weights.heads
        widest = max(weights.hidden_size, num_heads * dim, weights.intermediate_size)
        num_groups = max(
            k // length
            for k, length in zip(
                (weights.hidden_size, num_heads * dim, weights.intermediate_size), weights.group_lens, strict=True
            )
        )
        padded_keys = -(-num_keys // PANEL) * PANEL + PANEL
        self._scratch = (
            aligned([num_rows, widest], self._rows_kind),
            aligned([num_rows, num_groups], np.float32),
            aligned([num_rows, num_groups], np.int32),
            aligned([num_rows, widest], np.float32),
            aligned([num_rows, _padded((num_heads + 2 * num_kv_heads) * dim)], np.float32),
            aligned([num_rows, num_heads * dim], np.float32),
            aligned([num_rows, _padded(2 * weights.intermediate_size)], np.float32),
            aligned([self._num_threads, TILE_ROWS * (padded_keys + 2 * PANEL)], np.float32),
            aligned([num_kv_heads * padded_keys * dim], np.float32),
        )

    def _fresh_tallies(self, num_phases: int) -> np.ndarray:
        """Zeroed tallies for so many phases (see `shares`)."""
        if num_phases > len(self._tallies):
            self._tallies = aligned([num_phases, TALLY_BYTES], np.int8)
        tallies = self._tallies[:num_phases]
        tallies.fill(0)
        return tallies

    def _extend_rotary(self, num_positions: int) -> None:
        """Cosines and sines come from transformers' own module, so that every kind of scaling stays right."""
        if num_positions <= len(self._cos):
            return
        positions = torch.arange(-(-num_positions // TABLE_STEP) * TABLE_STEP)[None]
        cos, sin = self._rotary(torch.zeros(1), positions)
        # One layout of memory: another would be another type to numba, and compiled anew.
        self._cos, self._sin = (np.ascontiguousarray(table[0].float().numpy()) for table in (cos, sin))


def _padded(size: int) -> int:
    return -(-size // PANEL) * PANEL


def _rows_of(inputs: AttentionInputs) -> tuple[np.ndarray, ...]:
    """Of each row its sequence and the end of its keys; tables; rows attending alone; (start, length) of chunks."""
    starts, ends = inputs.query_starts, inputs.kv_lens
    lens = [end - start for start, end in itertools.pairwise(starts)]
    row_seqs = np.repeat(np.arange(len(lens)), lens)
    row_ends = np.concatenate([np.arange(end - n, end) + 1 for n, end in zip(lens, ends, strict=True)])
    tables = np.zeros((len(lens), max(len(t) for t in inputs.block_tables)), np.int64)
    for seq, table in enumerate(inputs.block_tables):
        tables[seq, : len(table)] = table
    chunks = list(zip(starts, lens, strict=False))
    narrow = [start + i for start, n in chunks if n < WIDE_CHUNK for i in range(n)]
    wide = [chunk for chunk in chunks if chunk[1] >= WIDE_CHUNK]
    return (
        row_seqs,
        row_ends,
        tables,
        np.array(narrow, np.int64),
        np.array(wide, np.int64).reshape(len(wide), 2),
    )

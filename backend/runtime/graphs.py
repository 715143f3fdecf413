"""Decode steps as recorded graphs: one replay where Python would launch hundreds of kernels.

A step of few tokens is laid into buffers that never move, padded to one of a few sizes, and the forward pass recorded
over them is replayed. Every token is a row of its own there, with its own block table, so that guesses need nothing
more. Rows of padding keep their keys and values in a block that no sequence has: the pool's last. All other steps go to
the text backend behind. (CUDA graphs for decode: vLLM, nano-vllm.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

from backend.runtime.attention.base import AttentionInputs, StepAttention
from backend.runtime.attention.sdpa import Group, SdpaAttention, SdpaPlan
from backend.runtime.upload import upload

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter
    from backend.runtime.kv_pool import KvPool
    from backend.runtime.text_backend import TextBackend

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_KEYS = (512, 2048, 8192)
_MOST_KEYS = 1 << 15
"""Rows times keys of a graph: all of them are gathered in every layer, whether a step has them or not."""

MOST_TOKENS_EACH = 8
"""Of one sequence: each of its rows gathers all its keys, which is no way to compute a prompt."""

_NUM_WARM_UPS = 2

Replay = Callable[[], torch.Tensor]


class Recorder(Protocol):
    """What records work on a device."""

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        """Run `work` and record it. A replay repeats its operations on the same memory, and runs no Python of it.

        The result is the same tensor each time, good until the next replay of any graph. Raises what the device says
        of work that cannot be recorded.
        """
        ...


class CudaRecorder:
    """`Recorder` by CUDA graphs, which share their memory: they never run at the same time."""

    def __init__(self) -> None:
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        """See `Recorder.record`. Libraries make themselves ready in a few runs before, on a stream of their own."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graphs[0].pool() if self._graphs else None):
            output = work()
        self._graphs.append(graph)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """What a graph has room for: tokens, and keys that each of them sees."""

    rows: int
    keys: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.keys}"


class GraphedText:
    """`TextBackend`: steps that fit into a graph are replayed, all others are computed by `behind`.

    `pool` has one block more than sequences use, the last. `sizes` are those that can be recorded, the smallest first.
    """

    def __init__(self, behind: TextBackend, adapter: ModelAdapter, pool: KvPool) -> None:
        self._behind = behind
        self._adapter = adapter
        self._attention = SdpaAttention(pool)
        self._block_size = pool.block_size
        self._spare_block = pool.num_blocks - 1
        self._replays: dict[Size, Replay] = {}
        self.sizes = _sizes(self._spare_block, pool.block_size, adapter.spec.max_model_len)
        most, device = max((size.rows for size in self.sizes), default=0), pool.device
        most_blocks = max((size.keys for size in self.sizes), default=0) // pool.block_size
        self._offsets = torch.arange(pool.block_size, device=device)
        self._rows = torch.arange(most, device=device)
        with torch.inference_mode():
            self._embeds = torch.zeros_like(adapter.embed(torch.zeros(most, dtype=torch.int64, device=device)))
            self._positions = self._rows.new_zeros(adapter.spec.num_position_rows, most)
            self._slots = self._rows.new_zeros(most)
            self._last_keys = self._rows.new_zeros(most)
            self._tables = self._rows.new_zeros(most, most_blocks)

    def record(self, size: Size, recorder: Recorder) -> None:
        """Record the graph of `size`; the caller holds `torch.inference_mode()`."""
        self._clear(size)
        self._replays[size] = recorder.record(lambda: self._forward(size))

    def find_size(self, inputs: AttentionInputs) -> Size | None:
        """The smallest recorded graph with room for a step, if there is one."""
        starts = inputs.query_starts
        most_each = max(end - start for start, end in pairwise(starts))
        if inputs.atomic_rows or most_each > MOST_TOKENS_EACH:
            return None
        num_rows, num_keys = starts[-1], max(inputs.kv_lens)
        fitting = (s for s in self.sizes if s.rows >= num_rows and s.keys >= num_keys)
        return next((s for s in fitting if s in self._replays), None)

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """See `TextBackend.forward`. What a graph gives is good until the next step."""
        size = self.find_size(inputs)
        if size is None:
            return self._behind.forward(embeds, positions, inputs)
        return self.replay(size, embeds, positions, inputs)

    def replay(
        self, size: Size, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs
    ) -> torch.Tensor:
        """`forward` by the graph of `size`, which has room for the step."""
        self._clear(size)
        self._fill(embeds, positions, inputs)
        return self._replays[size]()[: len(embeds)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TextBackend.logits`."""
        return self._behind.logits(hidden)

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TextBackend.likeliest`."""
        return self._behind.likeliest(hidden)

    def _clear(self, size: Size) -> None:
        """Make every row one of padding: a token of zeros that sees and writes nothing but the spare block."""
        self._embeds[: size.rows].zero_()
        self._positions[:, : size.rows].zero_()
        self._slots[: size.rows].fill_(self._spare_block * self._block_size)
        self._last_keys[: size.rows].zero_()
        self._tables[: size.rows].fill_(self._spare_block)

    def _fill(self, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> None:
        """Lay a step over the first rows."""
        num_rows, device, starts = len(embeds), embeds.device, inputs.query_starts
        width = -(-max(inputs.kv_lens) // self._block_size)
        last_keys: list[int] = []
        tables: list[list[int]] = []
        for seq, (kv_len, table) in enumerate(zip(inputs.kv_lens, inputs.block_tables, strict=True)):
            num_tokens = starts[seq + 1] - starts[seq]
            last_keys += range(kv_len - num_tokens, kv_len)
            own = table[: -(-kv_len // self._block_size)]
            tables += [[*own, *[self._spare_block] * (width - len(own))]] * num_tokens
        self._embeds[:num_rows].copy_(embeds)
        self._positions[:, :num_rows].copy_(positions)
        self._slots[:num_rows].copy_(inputs.slots)
        self._last_keys[:num_rows].copy_(upload(last_keys, torch.int64, device))
        self._tables[:num_rows, :width].copy_(upload(tables, torch.int64, device))

    def _forward(self, size: Size) -> torch.Tensor:
        """The forward pass over the buffers; shapes follow from `size` alone, and so do all of Python's numbers."""
        tables = self._tables[: size.rows, : size.keys // self._block_size]
        key_slots = (tables[..., None] * self._block_size + self._offsets).flatten(1)
        last_keys = self._last_keys[: size.rows, None]
        group = Group(self._rows[: size.rows], last_keys, last_keys, key_slots, whole=False)
        plan = StepAttention(self._attention, SdpaPlan(self._slots[: size.rows], (group,)))
        return self._adapter.forward(self._embeds[: size.rows], self._positions[:, : size.rows], plan)


def _sizes(num_blocks: int, block_size: int, max_model_len: int) -> tuple[Size, ...]:
    """Sizes worth recording for a pool of so many blocks for sequences, the smallest first."""
    longest = min(num_blocks * block_size, max_model_len)
    shorter = [keys for keys in _KEYS if keys < longest]
    lengths = [*shorter, *_KEYS[len(shorter) : len(shorter) + 1]]
    rounded = [keys // block_size * block_size for keys in lengths]
    sizes = (Size(rows, keys) for rows in _ROWS for keys in rounded)
    return tuple(s for s in sizes if s.rows * s.keys <= _MOST_KEYS and 2 * s.rows <= num_blocks)

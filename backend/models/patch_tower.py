"""Qwen's vision transformers over flat patches, run piece by piece: their weights, our own loop.

Written by hand because blocks of a picture in full resolution take seconds on a CPU, and a picture's size decides how
its encoding is cut: see `patch_layout`. Windowed attention (Qwen2.5-VL) sees stretches of patches that were put next to
one another beforehand; learned positions and features tapped on the way (Qwen3-VL, "deepstack") are there if the tower
has them. Knows no requests and no text model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from backend.models.packed_linear import pack_linear, pack_mlp
from backend.models.patch_layout import Pace, Run, Work, plan_slices
from backend.models.sliced import SLICE_S
from backend.models.vision_slices import measure_s

_SAMPLE_ROWS, _SAMPLE_KEYS = 128, 1024
_MAX_LAYOUTS = 64
"""Grids remembered: cameras send the same few sizes again and again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture's work in slices, and `order`, int64 [P / merge^2]: which group of patches stands where in it."""

    grid: tuple[int, int]
    slices: tuple[tuple[Work, ...], ...]
    order: torch.Tensor | None


class PatchTower:
    """One tower. `layout` gives the work on a picture of so many rows and columns of embeddings: pure, remembered."""

    def __init__(self, visual: Any, mode: str) -> None:
        """`visual` is HF's tower, whose linear layers are packed for `mode`, see `pack_linear`."""
        self._visual = visual
        self._blocks: list[Any] = list(visual.blocks)
        self._merge: int = visual.spatial_merge_size
        self._taps: dict[int, int] = {b: n for n, b in enumerate(getattr(visual, "deepstack_visual_indexes", ()))}
        weight = visual.patch_embed.proj.weight
        self.device, self.dtype = weight.device, weight.dtype
        self._embed = _as_linear(visual.patch_embed.proj)
        for block in self._blocks:
            _pack_block(block, mode)
        with torch.inference_mode():
            self.set_pace(self._measure(weight[0].numel()))

    @property
    def num_taps(self) -> int:
        """How many levels of features are tapped beside the tower's end."""
        return len(self._taps)

    def set_pace(self, pace: Pace, slice_s: float = SLICE_S) -> None:
        """From now on, cut pictures by this pace. Not while one is being encoded or waits to be."""
        self._pace = pace
        self._slice_s = slice_s
        self.layout = lru_cache(_MAX_LAYOUTS)(self._lay_out)

    def _lay_out(self, grid: tuple[int, int]) -> Layout:
        rows, columns = grid
        num_patches = rows * columns * self._merge**2
        whole = [num_patches]
        segments = [whole] * len(self._blocks)
        order = None
        if hasattr(self._visual, "fullatt_block_indexes"):
            order, ends = get_vision_window_index(
                self._thw(grid),
                spatial_merge_size=self._merge,
                window_size=self._visual.window_size,
                patch_size=self._visual.patch_size,
            )
            windows = ends.diff().tolist()
            full = self._visual.fullatt_block_indexes
            segments = [whole if b in full else windows for b in range(len(self._blocks))]
        return Layout(grid, plan_slices(num_patches, segments, self._taps, self._pace, self._slice_s), order)

    def run(self, pixels: torch.Tensor, layout: Layout) -> Generator[None, None, torch.Tensor]:
        """Rows [n, H * (1 + taps)] of patches [P, K], a pause after every slice but the last."""
        state = _State(self, pixels, layout)
        for index, works in enumerate(layout.slices):
            if index:
                yield
            for work in works:
                state.do(work)
        return state.output()

    def _thw(self, grid: tuple[int, int]) -> torch.Tensor:
        return torch.tensor([[1, grid[0] * self._merge, grid[1] * self._merge]])

    def _measure(self, pixel_len: int) -> Pace:
        """What the stages take here, on rows of zeros."""
        attention = self._blocks[0].attn
        num_heads, head_dim = attention.num_heads, attention.head_dim
        width = num_heads * head_dim
        new = self._visual.patch_embed.proj.weight.new_zeros
        pixels, hidden, side = new(_SAMPLE_ROWS, pixel_len), new(_SAMPLE_ROWS, width), new(_SAMPLE_ROWS, head_dim)
        queries, keys = new(1, num_heads, _SAMPLE_ROWS, head_dim), new(1, num_heads, _SAMPLE_KEYS, head_dim)

        def row_s(call: Callable[[], object]) -> float:
            return measure_s(call, self.device) / _SAMPLE_ROWS

        block = self._blocks[0]
        return Pace(
            embed_s=row_s(lambda: self._embed(pixels)),
            project_s=row_s(lambda: project(block, hidden, (side, side))),
            finish_s=row_s(lambda: finish(block, hidden, hidden)),
            merge_s=row_s(lambda: self._visual.merger(hidden)),
            pair_s=row_s(lambda: scaled_dot_product_attention(queries, keys, keys)) / _SAMPLE_KEYS,
        )


class _State:
    """One picture on its way through the tower."""

    def __init__(self, tower: PatchTower, pixels: torch.Tensor, layout: Layout) -> None:
        self._tower = tower
        self._visual: Any = tower._visual
        self._layout = layout
        self._pixels = pixels
        attention = tower._blocks[0].attn
        num_patches = len(pixels)
        new = pixels.new_empty
        self._hidden = new(num_patches, attention.dim)
        self._qkv = new(3, attention.num_heads, num_patches, attention.head_dim)
        thw = tower._thw(layout.grid)
        # Worked out on the CPU, and brought over once: on a GPU nothing here is waited for.
        angles = self._visual.rotary_pos_emb(torch.empty(0), get_vision_position_ids(thw, tower._merge))
        self._angles = tuple(self._arranged(table).to(tower.device) for table in angles)
        self._learned: tuple[torch.Tensor, ...] = ()
        if hasattr(self._visual, "pos_embed"):
            learned = get_vision_interpolation_indices_and_weights(
                thw,
                num_grid_per_side=self._visual.num_grid_per_side,
                mode=self._visual.interpolation_mode,
                align_corners=self._visual.interpolation_align_corners,
                spatial_merge_size=tower._merge,
            )
            self._learned = tuple(self._arranged(table).to(tower.device) for table in learned)
        self._pixels = self._arranged(pixels)
        self._outputs: list[list[torch.Tensor]] = [[] for _ in range(1 + tower.num_taps)]

    def do(self, work: Work) -> None:
        """Run one piece."""
        rows = slice(work.rows.start, work.rows.stop)
        block = self._tower._blocks[work.block]
        if work.stage == "embed":
            self._hidden[rows] = self._embedded(rows)
        elif work.stage == "project":
            cos, sin = self._angles
            self._qkv[:, :, rows] = project(block, self._hidden[rows], (cos[rows], sin[rows]))
        elif work.stage == "attend":
            attended = torch.cat([self._attended(run, block.attn.scaling) for run in work.runs])
            self._hidden[rows] = finish(block, self._hidden[rows], attended)
        elif work.stage == "tap":
            level = self._tower._taps[work.block]
            self._outputs[1 + level].append(self._visual.deepstack_merger_list[level](self._hidden[rows]))
        else:
            self._outputs[0].append(self._visual.merger(self._hidden[rows]))

    def output(self) -> torch.Tensor:
        """Rows [n, H * (1 + taps)] in the picture's own order."""
        rows = torch.cat([torch.cat(pieces) for pieces in self._outputs], dim=-1)
        if self._layout.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(0, self._layout.order.to(rows.device), rows)

    def _arranged(self, table: torch.Tensor) -> torch.Tensor:
        """A table [P, …] by patches, its groups put into the layout's order."""
        if self._layout.order is None:
            return table
        groups = table.unflatten(0, (-1, self._tower._merge**2))
        return groups.index_select(0, self._layout.order.to(table.device)).flatten(0, 1)

    def _embedded(self, rows: slice) -> torch.Tensor:
        embedded = self._tower._embed(self._pixels[rows])
        if not self._learned:
            return embedded
        indices, weights = (table[rows] for table in self._learned)
        learned = (self._visual.pos_embed(indices) * weights[:, :, None]).sum(1)
        return embedded + learned.to(embedded.dtype)

    def _attended(self, run: Run, scale: float) -> torch.Tensor:
        """What the run's patches make of the values they see: [length, heads * head_dim]."""
        seen = slice(run.key_start, run.key_start + run.key_len * run.count)
        query = self._qkv[0, :, run.start : run.start + run.length]
        # [H, count * n, D] -> [count, H, n, D]
        query, key, value = (t.unflatten(1, (run.count, -1)).transpose(0, 1) for t in (query, *self._qkv[1:, :, seen]))
        attended = scaled_dot_product_attention(query, key, value, scale=scale)
        return attended.transpose(1, 2).reshape(run.length, -1)


def project(block: Any, hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Queries, keys and values [3, heads, n, D] of patches [n, H], queries and keys turned by `angles` (cos, sin)."""
    attention = block.attn
    qkv = attention.qkv(block.norm1(hidden)).unflatten(-1, (3, attention.num_heads, attention.head_dim))
    cos, sin = (table[:, None, None].float() for table in angles)
    turned = qkv[:, :2].float()
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(qkv.dtype), qkv[:, 2:]), dim=1).permute(1, 2, 0, 3)


def finish(block: Any, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The block's output [n, H] for patches whose attention is done."""
    hidden = hidden + block.attn.proj(attended)
    return hidden + block.mlp(block.norm2(hidden))


def _as_linear(convolution: Any) -> torch.nn.Module:
    """A convolution that covers each patch exactly once is a matrix, and faster as one."""
    weight = convolution.weight.detach().flatten(1)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], convolution.bias is not None, device="meta")
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if convolution.bias is not None:
        linear.bias = torch.nn.Parameter(convolution.bias.detach(), requires_grad=False)
    return pack_linear(linear, "none")


def _pack_block(block: Any, mode: str) -> None:
    for name in ("qkv", "proj"):
        setattr(block.attn, name, pack_linear(getattr(block.attn, name), mode))
    mlp = block.mlp
    if hasattr(mlp, "gate_proj"):
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(mlp, name, pack_linear(getattr(mlp, name), mode))
    else:
        block.mlp = pack_mlp(mlp.linear_fc1, mlp.act_fn, mlp.linear_fc2, mode)

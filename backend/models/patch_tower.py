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
from backend.models.patch_layout import Cost, Pace, Run, Work, plan_slices
from backend.models.sliced import SLICE_S
from backend.models.vision_slices import measure_s

_FEW_ROWS, _SAMPLE_ROWS, _SAMPLE_KEYS = 16, 256, 1024
_MAX_LAYOUTS = 64
"""Grids remembered: cameras send the same few sizes again and again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture's work in slices, and `order`, int64 [P / merge^2]: which group of patches stands where in it."""

    grid: tuple[int, int]
    slices: tuple[tuple[Work, ...], ...]
    order: torch.Tensor | None


class PatchTower:
    """One tower and its parts; `taps` are levels of features by block.

    `layout` gives the work on a picture of so many rows and columns of embeddings: pure, remembered.
    """

    def __init__(self, visual: Any) -> None:
        """`visual` is HF's tower, whose linear layers are packed, see `pack_linear`."""
        self.visual = visual
        self.blocks: list[Any] = list(visual.blocks)
        self.merge: int = visual.spatial_merge_size
        self.taps: dict[int, int] = {b: n for n, b in enumerate(getattr(visual, "deepstack_visual_indexes", ()))}
        weight = visual.patch_embed.proj.weight
        self.device: torch.device = weight.device
        self.embed = _as_linear(visual.patch_embed.proj)
        for block in self.blocks:
            _pack_block(block)
        with torch.inference_mode():
            self.set_pace(self._measure(weight[0].numel()))

    @property
    def num_taps(self) -> int:
        """How many levels of features are tapped beside the tower's end."""
        return len(self.taps)

    def set_pace(self, pace: Pace, slice_s: float = SLICE_S) -> None:
        """From now on, cut pictures by this pace. Not while one is being encoded or waits to be."""
        self._pace = pace
        self._slice_s = slice_s
        self.layout = lru_cache(_MAX_LAYOUTS)(self._lay_out)

    def _lay_out(self, grid: tuple[int, int]) -> Layout:
        rows, columns = grid
        num_patches = rows * columns * self.merge**2
        whole = [num_patches]
        segments = [whole] * len(self.blocks)
        order = None
        if hasattr(self.visual, "fullatt_block_indexes"):
            order, ends = get_vision_window_index(
                self.thw(grid),
                spatial_merge_size=self.merge,
                window_size=self.visual.window_size,
                patch_size=self.visual.patch_size,
            )
            windows = ends.diff().tolist()
            full = self.visual.fullatt_block_indexes
            segments = [whole if b in full else windows for b in range(len(self.blocks))]
        return Layout(grid, plan_slices(num_patches, segments, self.taps, self._pace, self._slice_s), order)

    def run(self, pixels: torch.Tensor, layout: Layout) -> Generator[None, None, torch.Tensor]:
        """Rows [B, n, H * (1 + taps)] of B pictures' patches [B, P, K], a pause after every slice but the last."""
        state = _State(self, pixels, layout)
        for index, works in enumerate(layout.slices):
            if index:
                yield
            for work in works:
                state.do(work)
        return state.output()

    def thw(self, grid: tuple[int, int]) -> torch.Tensor:
        """A picture's times, rows and columns of patches [1, 3], as transformers counts them. On the CPU."""
        return torch.tensor([[1, grid[0] * self.merge, grid[1] * self.merge]])

    def bring(self, table: torch.Tensor) -> torch.Tensor:
        """A table made on the CPU, on the tower's device; nothing there is waited for."""
        return table if self.device.type == "cpu" else table.pin_memory().to(self.device, non_blocking=True)

    def _measure(self, pixel_len: int) -> Pace:
        """What the stages take here, on rows of zeros."""
        attention = self.blocks[0].attn
        num_heads, head_dim = attention.num_heads, attention.head_dim
        width = num_heads * head_dim
        new = self.visual.patch_embed.proj.weight.new_zeros
        pixels, hidden = new(1, _SAMPLE_ROWS, pixel_len), new(1, _SAMPLE_ROWS, width)
        angles = torch.zeros(2, _SAMPLE_ROWS, head_dim, device=self.device)
        queries, keys = new(1, num_heads, _SAMPLE_ROWS, head_dim), new(1, num_heads, _SAMPLE_KEYS, head_dim)
        block = self.blocks[0]

        def cost(call: Callable[[int], object]) -> Cost:
            few, many = (measure_s(lambda n=n: call(n), self.device) for n in (_FEW_ROWS, _SAMPLE_ROWS))
            row_s = max(many - few, many / 100) / (_SAMPLE_ROWS - _FEW_ROWS)
            return Cost(max(few - _FEW_ROWS * row_s, 0.0), row_s)

        pairs_s = measure_s(lambda: scaled_dot_product_attention(queries, keys, keys), self.device)
        return Pace(
            embed=cost(lambda n: self.embed(pixels[:, :n])),
            project=cost(lambda n: project(block, hidden[:, :n], angles[:, :n])),
            finish=cost(lambda n: finish(block, hidden[:, :n], hidden[:, :n])),
            merge=cost(lambda n: self.visual.merger(hidden[0, :n])),
            pair_s=pairs_s / _SAMPLE_ROWS / _SAMPLE_KEYS,
        )


class _State:
    """Pictures of one layout on their way through the tower, as a batch [B, …].

    Tables by patch are in the layout's order; pixels stay in their own.
    """

    def __init__(self, tower: PatchTower, pixels: torch.Tensor, layout: Layout) -> None:
        self._tower = tower
        self._visual: Any = tower.visual
        self._layout = layout
        self._pixels = pixels
        attention, new = tower.blocks[0].attn, pixels.new_empty
        num_pictures, num_patches, _ = pixels.shape
        self._hidden = new(num_pictures, num_patches, attention.dim)
        self._qkv = new(3, num_pictures, attention.num_heads, num_patches, attention.head_dim)
        self._angles = torch.empty(2, num_patches, attention.head_dim, device=pixels.device)
        self._outputs: list[list[torch.Tensor]] = [[] for _ in range(1 + tower.num_taps)]
        thw = tower.thw(layout.grid)
        merge = tower.merge
        order = torch.arange(num_patches).unflatten(0, (-1, merge**2))
        order = (order if layout.order is None else order[layout.order]).flatten()
        self._order = tower.bring(order)
        self._places = tower.bring(get_vision_position_ids(thw, merge)[order])
        self._learned: tuple[torch.Tensor, ...] = ()
        if hasattr(self._visual, "pos_embed"):
            learned = get_vision_interpolation_indices_and_weights(
                thw,
                num_grid_per_side=self._visual.num_grid_per_side,
                mode=self._visual.interpolation_mode,
                align_corners=self._visual.interpolation_align_corners,
                spatial_merge_size=merge,
            )
            self._learned = tuple(tower.bring(table[order]) for table in learned)

    def do(self, work: Work) -> None:
        """Run one piece."""
        rows = slice(work.rows.start, work.rows.stop)
        block = self._tower.blocks[work.block]
        if work.stage == "embed":
            self._hidden[:, rows] = self._embedded(rows)
            for table, angles in zip(
                self._angles, self._visual.rotary_pos_emb(self._angles, self._places[rows]), strict=True
            ):
                table[rows] = angles
        elif work.stage == "project":
            self._qkv[:, :, :, rows] = project(block, self._hidden[:, rows], self._angles[:, rows])
        elif work.stage == "attend":
            attended = torch.cat([self._attended(run, block.attn.scaling) for run in work.runs], dim=1)
            self._hidden[:, rows] = finish(block, self._hidden[:, rows], attended)
        elif work.stage == "tap":
            level = self._tower.taps[work.block]
            self._outputs[1 + level].append(self._merged(self._visual.deepstack_merger_list[level], rows))
        else:
            self._outputs[0].append(self._merged(self._visual.merger, rows))

    def output(self) -> torch.Tensor:
        """Rows [B, n, H * (1 + taps)] in the pictures' own order."""
        rows = torch.cat([torch.cat(pieces, dim=1) for pieces in self._outputs], dim=-1)
        if self._layout.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(1, self._tower.bring(self._layout.order), rows)

    def _merged(self, merger: Any, rows: slice) -> torch.Tensor:
        """Groups of patches made into rows [B, n, H]; a merger takes them one after the other."""
        return merger(self._hidden[:, rows].flatten(0, 1)).unflatten(0, (len(self._hidden), -1))

    def _embedded(self, rows: slice) -> torch.Tensor:
        embedded = self._tower.embed(self._pixels.index_select(1, self._order[rows]))
        if not self._learned:
            return embedded
        indices, weights = (table[rows] for table in self._learned)
        learned = (self._visual.pos_embed(indices) * weights[:, :, None]).sum(1)
        return embedded + learned.to(embedded.dtype)

    def _attended(self, run: Run, scale: float) -> torch.Tensor:
        """What the run's patches make of the values they see: [B, length, heads * head_dim]."""
        seen = slice(run.key_start, run.key_start + run.key_len * run.count)
        query = self._qkv[0, :, :, run.start : run.start + run.length]
        # [B, H, count * n, D] -> [B * count, H, n, D]
        query, key, value = (
            t.unflatten(2, (run.count, -1)).transpose(1, 2).flatten(0, 1) for t in (query, *self._qkv[1:, :, :, seen])
        )
        attended = scaled_dot_product_attention(query, key, value, scale=scale)
        return attended.transpose(1, 2).reshape(len(self._hidden), run.length, -1)


def project(block: Any, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values [3, B, heads, n, D] of patches [B, n, H].

    Queries and keys are turned by `angles` (cos, sin).
    """
    attention = block.attn
    qkv = attention.qkv(block.norm1(hidden)).unflatten(-1, (3, attention.num_heads, attention.head_dim))
    cos, sin = angles[:, :, None, None]
    turned = qkv[:, :, :2].float()
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(qkv.dtype), qkv[:, :, 2:]), dim=2).permute(2, 0, 3, 1, 4)


def finish(block: Any, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The block's output [B, n, H] for patches whose attention is done."""
    hidden = hidden + block.attn.proj(attended)
    return hidden + block.mlp(block.norm2(hidden))


def _as_linear(convolution: Any) -> torch.nn.Module:
    """A convolution that covers each patch exactly once is a matrix, and faster as one."""
    weight = convolution.weight.detach().flatten(1)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], convolution.bias is not None, device="meta")
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if convolution.bias is not None:
        linear.bias = torch.nn.Parameter(convolution.bias.detach(), requires_grad=False)
    return pack_linear(linear)


def _pack_block(block: Any) -> None:
    for name in ("qkv", "proj"):
        setattr(block.attn, name, pack_linear(getattr(block.attn, name)))
    mlp = block.mlp
    if hasattr(mlp, "gate_proj"):
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(mlp, name, pack_linear(getattr(mlp, name)))
    else:
        block.mlp = pack_mlp(mlp.linear_fc1, mlp.act_fn, mlp.linear_fc2)

"""Slices smaller than a block of a vision transformer: its parts run over ranges of patches and may pause in between.

Projections and MLPs treat every patch by itself and are cut by patches; attention is cut by queries. How long a range
takes is measured once, when the model is loaded. A range is computed like the whole up to the order of sums: results
differ in the last bits only. Knows no model family.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from backend.errors import ModelLoadError
from backend.models.packed_linear import pack_linear, pack_mlp

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from backend.models.sliced import SlicedTower

ATTENTION_NAME = "watchword_sliced_vision"

_GRANULE = 8
"""Ranges are so many rows or a multiple: vector units want no odd ends."""

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")

_SAMPLE_ROWS = 128
_NUM_SAMPLES = 5


def split_rows(num_rows: int, row_s: float, slice_s: float) -> list[range]:
    """`num_rows` rows of `row_s` seconds each, in ranges of equal length that take at most `slice_s` where possible."""
    num_ranges = max(1, min(-(-num_rows // _GRANULE), math.ceil(num_rows * row_s / slice_s)))
    length = -(-num_rows // num_ranges // _GRANULE) * _GRANULE
    return [range(first, min(first + length, num_rows)) for first in range(0, num_rows, length)]


class ByRows(torch.nn.Module):
    """A module that treats each row [..., n, H] by itself, run over ranges of rows of `row_s` seconds each."""

    def __init__(self, module: torch.nn.Module, tower: SlicedTower, row_s: float) -> None:
        super().__init__()
        self.module = module
        self._tower = tower
        self._row_s = row_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the module makes of `x`."""
        ranges = split_rows(x.shape[-2], self._row_s, self._tower.slice_s)
        pieces = []
        for rows in ranges:
            self._tower.spend(len(rows) * self._row_s)
            pieces.append(self.module(x[..., rows.start : rows.stop, :]))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)


class ByStrips(torch.nn.Module):
    """A convolution without overlap or padding (patches into rows), run over strips of patches [B, C, Y, X]."""

    def __init__(self, convolution: torch.nn.Conv2d, tower: SlicedTower, pixels: int) -> None:
        """`pixels` per side are usual: what a strip of them takes is measured."""
        super().__init__()
        # Channels last, so that a patch becomes a row as it lies: otherwise the rows would be transposed in memory, and
        # with them every sum and norm of the tower.
        self.convolution = convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._tower = tower
        self._side: int = convolution.kernel_size[0]
        sample = convolution.weight.new_zeros(1, convolution.in_channels, self._side, pixels)
        self._strip_s = measure_s(lambda: convolution(sample), sample.device)

    @property
    def weight(self) -> torch.Tensor:
        """The convolution's own: some towers look at its dtype."""
        return self.convolution.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the convolution makes of `x`."""
        pieces = []
        for strips in split_rows(x.shape[-2] // self._side, self._strip_s, self._tower.slice_s):
            self._tower.spend(len(strips) * self._strip_s)
            pieces.append(self.convolution(x[..., strips.start * self._side : strips.stop * self._side, :]))
        return torch.cat(pieces, dim=-2)


@dataclass(frozen=True, slots=True)
class _QueryPace:
    """What `sliced_attention` finds on its layer: who pauses, and how long one query takes."""

    tower: SlicedTower
    query_s: float


def sliced_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query, key, value [B, H, n, D] -> [B, n, H, D]: everything sees everything, queries run by ranges.

    `attention_mask` is None in every call: a tile has no padding.
    """
    pace: _QueryPace = module.query_pace
    attended = query.new_empty(query.shape[0], query.shape[2], query.shape[1], query.shape[3])
    for rows in split_rows(query.shape[2], pace.query_s, pace.tower.slice_s):
        pace.tower.spend(len(rows) * pace.query_s)
        some = scaled_dot_product_attention(query[:, :, rows.start : rows.stop], key, value, scale=scaling)
        attended[:, rows.start : rows.stop] = some.transpose(1, 2)
    return attended, None


def slice_blocks(model: PreTrainedModel, layers: torch.nn.ModuleList, tower: SlicedTower, num_patches: int) -> None:
    """Let `tower` pause inside SigLIP-shaped `layers` of `model`: MLP, projections and attention over `num_patches`.

    Raises `ModelLoadError` when transformers did not take the attention (for a class not ready for it, it only warns).
    """
    AttentionInterface.register(ATTENTION_NAME, sliced_attention)
    model.set_attn_implementation({"vision_config": ATTENTION_NAME})
    first: Any = layers[0]
    if first.self_attn.config._attn_implementation != ATTENTION_NAME:
        raise ModelLoadError(f"{type(model).__name__}: transformers cannot replace its vision tower's attention")
    for layer in layers:
        _pack_block(layer)
    weight = first.layer_norm1.weight
    sample = weight.new_zeros(1, min(num_patches, _SAMPLE_ROWS), len(weight))
    query_s = _query_s(first.self_attn, sample, num_patches)
    mlp_s, projection_s = measure_row_s(first.mlp, sample), measure_row_s(first.self_attn.q_proj, sample)
    for layer in layers:
        block: Any = layer
        block.self_attn.query_pace = _QueryPace(tower, query_s)
        block.mlp = ByRows(block.mlp, tower, mlp_s)
        for name in _PROJECTIONS:
            setattr(block.self_attn, name, ByRows(getattr(block.self_attn, name), tower, projection_s))


def _pack_block(block: Any) -> None:
    for name in _PROJECTIONS:
        setattr(block.self_attn, name, pack_linear(getattr(block.self_attn, name)))
    mlp = block.mlp
    block.mlp = pack_mlp(mlp.fc1, mlp.activation_fn, mlp.fc2)


def measure_row_s(module: torch.nn.Module, rows: torch.Tensor) -> float:
    """Seconds that `module` takes for one of `rows` [1, n, H]."""
    return measure_s(lambda: module(rows), rows.device) / rows.shape[1]


def _query_s(attention: Any, rows: torch.Tensor, num_patches: int) -> float:
    keys = rows.new_zeros(1, attention.num_heads, num_patches, attention.head_dim)
    queries = keys[:, :, : rows.shape[1]]
    return measure_s(lambda: scaled_dot_product_attention(queries, keys, keys), rows.device) / rows.shape[1]


def measure_s(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of `work` when nothing disturbs it. On a GPU 0: there, blocks are short enough.

    It is the shortest of a few, in this thread's own processor time: other programs' shares do not count.
    """
    if device.type != "cpu":
        return 0.0
    timed = []
    with torch.inference_mode():
        for _ in range(1 + _NUM_SAMPLES):
            begin = time.thread_time()
            work()
            timed.append(time.thread_time() - begin)
    return min(timed[1:])

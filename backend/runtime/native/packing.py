"""Matrices packed for the compiled loops: in float32, int8 or int4, in the order in which the tiles read them.

In int8 a matrix is quantised symmetrically, with a scale for each output and each group of input columns. In int4 each
such group has a scale and a minimum, as in GGUF's Q4_1: weights that come from there are the same again. Needs torch
and numpy, not numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from backend.errors import ConfigError

Numbers = Literal["float32", "int8", "int4"]
"""What a matrix's weights are packed in."""
PANEL = 32
LONGEST_GROUP = 32
ALIGNMENT = 64
MAX_CODE = 15
NUM_PROBED = 64
"""Rows of a matrix, at least, that are looked at before it is packed: all, where there are fewer."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [N, K] in groups of input columns: codes uint8 [N, K / L, L], scales and minima float32 [N, K / L].

    A weight is code * scale + minimum. What int8 takes off again is -128 times a scale: it keeps no minima.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor

    def weights(self) -> torch.Tensor:
        """The weights that these groups stand for, float32 [N, K]."""
        return (self.codes * self.scales[..., None] + self.minima[..., None]).flatten(1)


def quantise_int8(weight: torch.Tensor) -> Groups:
    """The nearest of 255 multiples of a scale, which is the largest magnitude's 127th part; codes are plus 128."""
    groups = weight.unflatten(1, (-1, group_len(weight.shape[1])))
    scales = groups.abs().amax(-1) / 127.0
    codes = (groups / scales.clamp(min=1e-30)[..., None]).round_().add_(128.0).to(torch.uint8)
    return Groups(codes, scales, -128.0 * scales)


def quantise_int4(weight: torch.Tensor) -> Groups:
    """The nearest of 16 numbers from a group's least to its greatest weight; scales and minima are float16's.

    Raises ConfigError where a weight is beyond float16's range.
    """
    groups = weight.unflatten(1, (-1, group_len(weight.shape[1])))
    low, high = groups.aminmax(dim=-1)
    minima, scales = low.half().float(), ((high - low) / MAX_CODE).half().float()
    if not bool(torch.isfinite(minima).all() and torch.isfinite(scales).all()):
        raise ConfigError(f"int4 needs weights of at most {torch.finfo(torch.float16).max:.0f}")
    codes = ((groups - minima[..., None]) / scales.clamp(min=1e-30)[..., None]).round_().clamp_(0, MAX_CODE)
    return Groups(codes.to(torch.uint8), scales, minima)


def is_int4_as_close(weight: torch.Tensor) -> bool:
    """Whether a matrix is as near to itself in int4 as in int8: true of weights that had four bits before.

    Rows from all over it stand for the others. Raises ConfigError where a weight is too large, or rows are too odd.
    """
    probed = weight[:: max(1, len(weight) // NUM_PROBED)]
    int4, int8 = (quantise(probed).weights().sub_(probed).norm() for quantise in (quantise_int4, quantise_int8))
    return bool(int4 <= int8)


def group_len(columns: int) -> int:
    """Input columns that share a scale: the largest divisor of `columns` that is a multiple of 4 and at most 32.

    Raises ConfigError where there is none.
    """
    for length in range(min(columns, LONGEST_GROUP), 3, -1):
        if columns % length == 0 and length % 4 == 0:
            return length
    raise ConfigError(f"int8 and int4 need rows of a multiple of 4 weights, not {columns}; use --quantization none")


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix [N, K] in panels of 32 outputs, N padded with zeros; see `tiles` for the order within a panel."""

    weights: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    columns: int
    bits: int

    @property
    def addresses(self) -> tuple[int, int, int, int, int]:
        """What the loops are given: three addresses, valid while this object lives, columns, and bits of a weight."""
        return self.weights.ctypes.data, self.scales.ctypes.data, self.bias.ctypes.data, self.columns, self.bits


def pack(linears: Sequence[torch.nn.Linear], numbers: Numbers) -> PackedMatrix:
    """The linears, which share their input, stacked and packed."""
    weight = stacked(linears)
    num_outputs, columns = weight.shape
    num_panels = -(-num_outputs // PANEL)
    bias = aligned([num_panels * PANEL], np.float32)
    parts = [torch.zeros(len(m.weight)) if m.bias is None else m.bias.detach().float() for m in linears]
    bias[:num_outputs] = torch.cat(parts).numpy()
    weight = torch.nn.functional.pad(weight, (0, 0, 0, num_panels * PANEL - num_outputs))
    if numbers == "float32":
        packed = _filled(weight.view(num_panels, PANEL, columns).transpose(1, 2))
        return PackedMatrix(packed, bias[:0], bias, columns, 32)
    if numbers == "int4":
        return PackedMatrix(*_in_panels_int4(quantise_int4(weight)), bias, columns, 4)
    groups = quantise_int8(weight)
    packed_scales = _filled(_by_panel(groups.scales))
    return PackedMatrix(_filled(_by_step(groups.codes)), packed_scales, bias, columns, 8)


def stacked(linears: Sequence[torch.nn.Linear]) -> torch.Tensor:
    """The weights of linears that share their input, as one matrix."""
    return torch.cat([linear.weight.detach() for linear in linears])


def _in_panels_int4(groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Codes of outputs 0 to 15 in the low halves of bytes, of 16 to 31 in the high ones; scales before minima."""
    by_step = _by_step(groups.codes)
    pairs = by_step[..., : PANEL // 2, :] | (by_step[..., PANEL // 2 :, :] << 4)
    tables = torch.stack([_by_panel(groups.scales), _by_panel(groups.minima)], dim=2).half()
    return _filled(pairs), _filled(tables)


def _by_step(codes: torch.Tensor) -> torch.Tensor:
    """Codes [N, groups, L] as [panels, groups, L / 4, 32, 4]."""
    num_rows, num_groups, length = codes.shape
    return codes.view(num_rows // PANEL, PANEL, num_groups, length // 4, 4).permute(0, 2, 3, 1, 4)


def _by_panel(table: torch.Tensor) -> torch.Tensor:
    """A number for each output and group [N, groups] as [panels, groups, 32]."""
    return table.view(-1, PANEL, table.shape[1]).transpose(1, 2)


def _filled(ordered: torch.Tensor) -> np.ndarray:
    """A copy that begins at a cache line."""
    packed = aligned(ordered.shape, ordered.numpy().dtype)
    packed[:] = ordered.numpy()
    return packed

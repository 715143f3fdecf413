"""Linear layers for a CPU whose weights are laid out once, when the model is loaded, in the order the CPU wants.

torch's own layer lays them out anew in every call, which hurts most where few rows are computed at a time. The
operators are those that torch's compiler emits (oneDNN). float32 is the same up to the order of sums; int8 has a scale
for each output and each row of activations, so a row's result never depends on its neighbours.
"""

from __future__ import annotations

import torch
from transformers.activations import GELUTanh

_ZERO_POINT = 128
"""Activations are unsigned with 0 in the middle: of two 8-bit factors, the CPU's instructions want one unsigned."""

_MAX = 127.0


class PackedLinear(torch.nn.Module):
    """A linear layer [..., in] -> [..., out] in its own dtype."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight, bias = linear.weight.detach(), linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = None if bias is None else bias.detach()
        self._after: tuple[str, list[float], str] = ("none", [], "")

    def fuse_gelu(self) -> None:
        """From now on, put a GELU (by tanh) on top, while the outputs are still in the CPU's cache."""
        self._after = ("gelu", [], "tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's outputs."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, *self._after)


class Int8Linear(torch.nn.Module):
    """A linear layer [..., in] -> [..., out] that multiplies in int8; what goes in and comes out keeps its dtype."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(dim=1) / _MAX).clamp_(min=1e-30)
        whole = (weight / scales[:, None]).round_().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self._scales = scales
        self._zeros = torch.zeros(len(scales), dtype=torch.int32)
        self._bias = torch.zeros(len(scales)) if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's outputs."""
        rows = x.reshape(-1, x.shape[-1]).float()
        steps = rows.abs().amax(dim=-1, keepdim=True).div_(_MAX).clamp_(min=1e-30)
        # To add half and to cut off is to round: all is positive here.
        whole = (rows / steps).add_(_ZERO_POINT + 0.5).to(torch.uint8)
        products = torch.ops.onednn.qlinear_pointwise(
            whole,
            1.0,
            _ZERO_POINT,
            self._packed,
            self._scales,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        outputs = torch.addcmul(self._bias, products, steps)
        return outputs.to(x.dtype).view(*x.shape[:-1], -1)


def is_int8_fast() -> bool:
    """Whether this CPU multiplies 8-bit numbers at speed, and exactly (VNNI)."""
    return torch.cpu._is_vnni_supported()


def pack_linear(linear: torch.nn.Linear, mode: str) -> torch.nn.Module:
    """`linear` for its device and `mode` ("none" or "int8"): packed on a CPU, as it is elsewhere."""
    if linear.weight.device.type != "cpu":
        return linear
    if mode == "int8":
        return Int8Linear(linear)
    return PackedLinear(linear) if linear.weight.dtype == torch.float32 else linear


def pack_mlp(up: torch.nn.Linear, activation: torch.nn.Module, down: torch.nn.Linear, mode: str) -> torch.nn.Sequential:
    """`down(activation(up(x)))` with both layers packed; a GELU by tanh is computed within `up` where it can be."""
    first = pack_linear(up, mode)
    if isinstance(first, PackedLinear) and isinstance(activation, GELUTanh):
        first.fuse_gelu()
        return torch.nn.Sequential(first, pack_linear(down, mode))
    return torch.nn.Sequential(first, activation, pack_linear(down, mode))

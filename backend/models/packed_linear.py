"""Linear layers for a CPU whose weights are laid out once, when the model is loaded, in the order the CPU wants.

torch's own layer lays them out anew in every call, which hurts most where few rows are computed at a time. The
operators are those that torch's compiler emits (oneDNN); results are the same up to the order of sums.
"""

from __future__ import annotations

import torch
from transformers.activations import GELUTanh


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

    def unpacked(self) -> torch.nn.Linear:
        """The layer as it was, its weights a copy."""
        weight = self._packed.to_dense()
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=self._bias is not None, device="meta")
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        if self._bias is not None:
            linear.bias = torch.nn.Parameter(self._bias, requires_grad=False)
        return linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's outputs."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, *self._after)


def pack_linear(linear: torch.nn.Linear) -> torch.nn.Module:
    """`linear` packed if it is float32 on a CPU, as it is elsewhere."""
    is_packable = linear.weight.device.type == "cpu" and linear.weight.dtype == torch.float32
    return PackedLinear(linear) if is_packable else linear


def unpack_linear(module: torch.nn.Module) -> torch.nn.Linear:
    """The layer that `pack_linear` was given, its weights copied where they were packed."""
    if isinstance(module, PackedLinear):
        return module.unpacked()
    assert isinstance(module, torch.nn.Linear), "packed, or as it was"
    return module


def pack_mlp(up: torch.nn.Linear, activation: torch.nn.Module, down: torch.nn.Linear) -> torch.nn.Sequential:
    """`down(activation(up(x)))` with both layers packed; a GELU by tanh is computed within `up` where it can be."""
    first = pack_linear(up)
    if isinstance(first, PackedLinear) and isinstance(activation, GELUTanh):
        first.fuse_gelu()
        return torch.nn.Sequential(first, pack_linear(down))
    return torch.nn.Sequential(first, activation, pack_linear(down))

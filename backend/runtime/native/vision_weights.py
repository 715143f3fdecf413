"""A vision transformer's blocks, packed for the compiled loops: which ones fit, and their matrices in int8.

Needs torch and numpy, not numba.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from backend.runtime.native.packing import PANEL, PackedMatrix, pack

if TYPE_CHECKING:
    from backend.models.adapter import BlockParts

QKV, OUT, UP, DOWN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One block, packed: `matrices` int64 [4, 5] holds the addresses of those in `owned`."""

    matrices: np.ndarray
    norms: tuple[np.ndarray, np.ndarray]
    eps: tuple[np.float32, np.float32]
    factor: np.ndarray
    owned: tuple[PackedMatrix, ...] = field(repr=False)


def find_block_obstacle(block: BlockParts) -> str | None:
    """Why the loops cannot compute such blocks, in a few words; None when they can."""
    weight = block.up.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "its weights are not float32 on the CPU"
    if block.activation != "gelu_pytorch_tanh":
        return f"its activation is {block.activation!r}"
    hidden_size = len(block.norm1.weight)
    sizes = (("hidden size", hidden_size), ("head size", hidden_size // block.num_heads), ("MLP", len(weight)))
    for name, size in sizes:
        if size % PANEL:
            return f"its {name} of {size} is no multiple of {PANEL}"
    return None


def pack_block(block: BlockParts) -> BlockWeights:
    """Pack a block that `find_block_obstacle` found none in; copies its weights."""
    groups: list[tuple[torch.nn.Linear, ...]] = [(), (), (), ()]
    groups[QKV], groups[OUT], groups[UP], groups[DOWN] = block.qkv, (block.out,), (block.up,), (block.down,)
    owned = tuple(pack(group, "int8") for group in groups)
    norms = tuple(np.stack([n.weight.detach().numpy(), n.bias.detach().numpy()]) for n in (block.norm1, block.norm2))
    return BlockWeights(
        matrices=np.array([matrix.addresses for matrix in owned], np.int64),
        norms=(norms[0], norms[1]),
        eps=(np.float32(block.norm1.eps), np.float32(block.norm2.eps)),
        factor=np.array([block.scaling], np.float32),
        owned=owned,
    )

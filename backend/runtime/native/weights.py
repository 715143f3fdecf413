"""An HF text model's weights, packed for the compiled loops: which models fit, and how their matrices are laid out.

Matrices that share their input are stacked (queries, keys and values; gate and up). In int8 a matrix is quantised
symmetrically, with a scale for each output and each group of input columns. Needs torch and numpy, not numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from backend.errors import ConfigError

if TYPE_CHECKING:
    from backend.models.adapter import TextParts

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Text models whose layers are exactly what the loops compute, up to what `find_obstacle` checks."""
PANEL = 32
LONGEST_GROUP = 32
ALIGNMENT = 64


def find_obstacle(parts: TextParts) -> str | None:
    """Why the compiled loops cannot compute this model, in a few words; None when they can."""
    config = parts.decoder.config
    if config.model_type not in FAMILIES:
        return f"family {config.model_type!r} has layers of another kind"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act!r}"
    if parts.logit_divisor != 1.0 or parts.logit_cap is not None:
        return "logits are scaled or capped"
    first = parts.decoder.layers[0]
    if _rotary_dim(parts.decoder) != first.self_attn.head_dim:
        return "rotary positions turn only part of a head"
    if config.hidden_size % PANEL:
        return f"hidden size {config.hidden_size} is no multiple of {PANEL}"
    weight = parts.head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "the weights are not float32 on the CPU"
    return None


def _rotary_dim(decoder: Any) -> int:
    weight = decoder.norm.weight
    return decoder.rotary_emb(weight[None, None], torch.zeros(1, 1, dtype=torch.int64))[0].shape[-1]


def group_len(columns: int) -> int:
    """Input columns that share a scale: the largest divisor of `columns` that is a multiple of 4 and at most 32.

    Raises ConfigError where there is none.
    """
    for length in range(min(columns, LONGEST_GROUP), 3, -1):
        if columns % length == 0 and length % 4 == 0:
            return length
    raise ConfigError(f"int8 needs rows of a multiple of 4 weights, not {columns}; use --quantization none")


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

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """What the loops are given; valid while this object lives."""
        return self.weights.ctypes.data, self.scales.ctypes.data, self.bias.ctypes.data, self.columns


def pack(linears: Sequence[torch.nn.Linear], *, int8: bool) -> PackedMatrix:
    """The linears, which share their input, stacked and packed."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    num_outputs, columns = weight.shape
    num_panels = -(-num_outputs // PANEL)
    bias = aligned([num_panels * PANEL], np.float32)
    parts = [torch.zeros(len(m.weight)) if m.bias is None else m.bias.detach().float() for m in linears]
    bias[:num_outputs] = torch.cat(parts).numpy()
    weight = torch.nn.functional.pad(weight, (0, 0, 0, num_panels * PANEL - num_outputs))
    if not int8:
        packed = aligned([num_panels, columns, PANEL], np.float32)
        packed[:] = weight.view(num_panels, PANEL, columns).transpose(1, 2).numpy()
        return PackedMatrix(packed, bias[:0], bias, columns)
    length = group_len(columns)
    groups = weight.view(num_panels * PANEL, columns // length, length)
    scales = groups.abs().amax(-1) / 127.0
    whole = (groups / scales.clamp(min=1e-30)[..., None]).round_().add_(128.0).to(torch.uint8)
    ordered = whole.view(num_panels, PANEL, columns // length, length // 4, 4).permute(0, 2, 3, 1, 4)
    packed = aligned(ordered.shape, np.uint8)
    packed[:] = ordered.numpy()
    packed_scales = aligned([num_panels, columns // length, PANEL], np.float32)
    packed_scales[:] = scales.view(num_panels, PANEL, -1).transpose(1, 2).numpy()
    return PackedMatrix(packed, packed_scales, bias, columns)


@dataclass(frozen=True, slots=True)
class TextWeights:
    """A whole text model, packed.

    `matrices` int64 [L, 4, 4] holds the addresses of query-key-value, output, gate-up and down matrices; `flags` int64
    [L, 3] a layer's window (0: none), whether it turns heads by position, whether it norms them; `norms` [L, 2, H];
    `head_norms` [L, 2, D].
    """

    matrices: np.ndarray
    flags: np.ndarray
    norms: np.ndarray
    head_norms: np.ndarray
    last_norm: np.ndarray
    head: PackedMatrix
    heads: tuple[int, int, int]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    group_lens: tuple[int, int, int]
    factors: tuple[np.float32, np.float32, np.float32]
    owned: tuple[PackedMatrix, ...]


def pack_text(parts: TextParts, *, int8: bool) -> TextWeights:
    """Pack a model that `find_obstacle` found none in. Copies all matrices; the model's own stay as they are."""
    layers = list(parts.decoder.layers)
    attention, mlp = layers[0].self_attn, layers[0].mlp
    dim = attention.head_dim
    heads = (attention.q_proj.weight.shape[0] // dim, attention.k_proj.weight.shape[0] // dim, dim)
    inputs = (parts.decoder.config.hidden_size, heads[0] * dim, mlp.down_proj.weight.shape[1])
    packed = [[pack(group, int8=int8) for group in _groups(layer)] for layer in layers]
    head_norm = getattr(attention, "q_norm", None)
    factors = (layers[0].input_layernorm.variance_epsilon, getattr(head_norm, "variance_epsilon", 0.0))
    return TextWeights(
        matrices=np.array([[matrix.addresses for matrix in row] for row in packed], np.int64),
        flags=np.array([_flags(layer.self_attn, parts.decoder.config) for layer in layers], np.int64),
        norms=_stack([[layer.input_layernorm, layer.post_attention_layernorm] for layer in layers]),
        head_norms=_stack([[layer.self_attn.q_norm, layer.self_attn.k_norm] for layer in layers])
        if head_norm is not None
        else np.zeros((len(layers), 2, dim), np.float32),
        last_norm=parts.decoder.norm.weight.detach().numpy(),
        head=pack([parts.head], int8=int8),
        heads=heads,
        hidden_size=inputs[0],
        intermediate_size=inputs[2],
        vocab_size=parts.head.weight.shape[0],
        group_lens=tuple(group_len(k) for k in inputs) if int8 else inputs,  # type: ignore[arg-type]  # three of them
        factors=(np.float32(factors[0]), np.float32(factors[1]), np.float32(attention.scaling)),
        owned=tuple(matrix for row in packed for matrix in row),
    )


def _groups(layer: Any) -> list[list[torch.nn.Linear]]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    ]


def _flags(attention: Any, config: Any) -> tuple[int, int, int]:
    window = getattr(attention, "sliding_window", None)
    if config.model_type == "mistral":
        window = config.sliding_window
    return window or 0, int(getattr(attention, "use_rope", True)), int(hasattr(attention, "q_norm"))


def _stack(norms: list[list[Any]]) -> np.ndarray:
    return np.array([[norm.weight.detach().numpy() for norm in pair] for pair in norms], np.float32)

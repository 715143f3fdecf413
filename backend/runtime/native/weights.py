"""An HF text model's weights, packed for the compiled loops: which models fit, and which matrices there are.

Matrices that share their input are stacked (queries, keys and values; gate and up). Needs torch and numpy, not numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from backend.errors import ConfigError
from backend.runtime.native.packing import PANEL, Numbers, PackedMatrix, group_len, is_int4_as_close, pack, stacked

if TYPE_CHECKING:
    from backend.models.adapter import TextParts

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Text models whose layers are exactly what the loops compute, up to what `find_obstacle` checks."""


def find_obstacle(parts: TextParts) -> str | None:
    """Why the compiled loops cannot compute this model, in a few words; None when they can."""
    config, weight = parts.decoder.config, parts.head.weight
    if config.model_type not in FAMILIES:
        return f"family {config.model_type!r} has layers of another kind"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act!r}"
    if parts.logit_divisor != 1.0 or parts.logit_cap is not None:
        return "logits are scaled or capped"
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "the weights are not float32 on the CPU"
    first = parts.decoder.layers[0]
    if _rotary_dim(parts.decoder) != first.self_attn.head_dim:
        return "rotary positions turn only part of a head"
    if config.hidden_size % PANEL:
        return f"hidden size {config.hidden_size} is no multiple of {PANEL}"
    return None


def _rotary_dim(decoder: Any) -> int:
    weight = decoder.norm.weight
    return decoder.rotary_emb(weight[None, None], torch.zeros(1, 1, dtype=torch.int64))[0].shape[-1]


@dataclass(frozen=True, slots=True)
class TextWeights:
    """A whole text model, packed.

    `matrices` int64 [L, 4, 5] holds the addresses of query-key-value, output, gate-up and down matrices; `flags` int64
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


def find_int4_obstacle(parts: TextParts) -> str | None:
    """Why int4 is not known to be as good as int8 for a model that fits, in a few words; None where it is.

    Both compute with the same rows in int8, so int4 is as good where no matrix is further from itself than in int8.
    """
    try:
        is_close = all(is_int4_as_close(stacked(group)) for layer in parts.decoder.layers for group in _groups(layer))
    except ConfigError as error:
        return str(error)
    return None if is_close else "int4 would round these weights more than int8"


def pack_text(parts: TextParts, numbers: Numbers) -> TextWeights:
    """Pack a model that `find_obstacle` found none in. Copies all matrices; the model's own stay as they are.

    With int4 the head, whose rounding no later layer evens out, is int8 unless it is as close in int4.
    """
    layers = list(parts.decoder.layers)
    attention, mlp = layers[0].self_attn, layers[0].mlp
    dim = attention.head_dim
    heads = (attention.q_proj.weight.shape[0] // dim, attention.k_proj.weight.shape[0] // dim, dim)
    inputs = (parts.decoder.config.hidden_size, heads[0] * dim, mlp.down_proj.weight.shape[1])
    packed = [[pack(group, numbers) for group in _groups(layer)] for layer in layers]
    is_head_int8 = numbers == "int4" and not is_int4_as_close(parts.head.weight.detach())
    of_head: Numbers = "int8" if is_head_int8 else numbers
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
        head=pack([parts.head], of_head),
        heads=heads,
        hidden_size=inputs[0],
        intermediate_size=inputs[2],
        vocab_size=parts.head.weight.shape[0],
        group_lens=tuple(group_len(k) for k in inputs) if numbers != "float32" else inputs,  # type: ignore[arg-type]  # three of them
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

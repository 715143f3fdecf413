"""What computes the text model: the one seam between the runner and torch or compiled loops, and the choice by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from backend.errors import ConfigError
from backend.runtime.attention.base import AttentionInputs, StepAttention
from backend.runtime.attention.registry import make_attention
from backend.runtime.sampler import likeliest

if TYPE_CHECKING:
    import torch

    from backend.models.adapter import ModelAdapter
    from backend.runtime.attention.base import AttentionBackend
    from backend.runtime.kv_pool import KvPool
    from backend.runtime.native.packing import Numbers

NATIVE: dict[str, Numbers] = {"native": "float32", "native-int8": "int8", "native-int4": "int4"}
"""Compiled loops, and what their weights are."""
TEXT_BACKENDS = ("torch", *NATIVE)


class TextBackend(Protocol):
    """Computes the text model for flattened steps, keys and values in a pool of the runner's."""

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """One step: embeds [T, H], which may be overwritten, positions int64 [R, T] -> final-normed hidden [T, H]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] fp32 of hidden states [n, H]."""
        ...

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """What `sampler.likeliest` says of the logits of hidden states [n, H]; they need not leave the backend."""
        ...


class TorchText:
    """`TextBackend` by the HF model itself, with one of the attention backends. Any family, any device."""

    def __init__(self, adapter: ModelAdapter, attention: AttentionBackend) -> None:
        self._adapter = adapter
        self._attention = attention

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """See `TextBackend.forward`."""
        return self._adapter.forward(embeds, positions, StepAttention(self._attention, self._attention.plan(inputs)))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TextBackend.logits`."""
        return self._adapter.logits(hidden)

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TextBackend.likeliest`."""
        return likeliest(self._adapter.logits(hidden))


def make_text(name: str, adapter: ModelAdapter, pool: KvPool, *, attention: str) -> TextBackend:
    """The text backend `name`; `attention` is what "torch" attends with.

    Raises ConfigError for an unknown name, and for compiled loops that cannot compute this model on this machine.
    """
    if name == "torch":
        return TorchText(adapter, make_attention(attention, pool))
    if name not in TEXT_BACKENDS:
        raise ConfigError(f"text backend {name!r} is unknown; choose one of: {', '.join(TEXT_BACKENDS)}")
    from backend.runtime.native.compiler import make_native

    return make_native(adapter.text_parts(), pool, NATIVE[name])

"""The seam between the model's layers and whatever computes attention over the paged KV pool.

A backend is asked twice: `plan` once per step, with everything that is the same for all layers, and `run` once per
layer. Sequence indices decide what is visible, never rotary positions (M-RoPE repeats them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """One step's shape, for `plan`.

    Sequence s computes tokens `query_starts[s] : query_starts[s + 1]` of the flattened step, which are its indices
    `kv_lens[s] - query_len : kv_lens[s]`. `slots` int64 [T] is where each token's KV is written (block * block_size +
    offset). `block_tables[s]` lists the blocks that cover its `kv_lens[s]` tokens. `atomic_rows` are ranges of the
    flattened step, each within one sequence, whose tokens see one another whatever their order (images of some
    families); a window hides keys that lie too far back for them, too.
    """

    query_starts: tuple[int, ...]
    kv_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    slots: torch.Tensor
    atomic_rows: tuple[range, ...] = ()


class AttentionBackend(Protocol):
    """Computes causal attention of new tokens against the pool, after writing their keys and values into it."""

    name: str

    def plan(self, inputs: AttentionInputs) -> Any:
        """Work out what all layers share. No reference to the inputs may outlive the step."""
        ...

    def run(
        self,
        layer_idx: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Any,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """query [Hq, T, D], key and value [Hkv, T, D] (any strides) -> [T, Hq, D]. Writes KV of the T tokens first."""
        ...


@dataclass(frozen=True, slots=True)
class StepAttention:
    """A backend and its plan for one step: the `plan` that travels through the model to its attention layers."""

    backend: AttentionBackend
    plan: Any

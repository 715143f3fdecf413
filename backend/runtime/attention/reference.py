"""The oracle: attention written as the formula reads, one token and one sequence at a time, in fp32.

Every other backend is tested against this one. It is slow on purpose and knows no trick that could hide a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from backend.runtime.attention.base import AttentionInputs
    from backend.runtime.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """The inputs, and for each sequence the slots of its keys in order of index."""

    inputs: AttentionInputs
    key_slots: tuple[torch.Tensor, ...]


class ReferenceAttention:
    """`AttentionBackend` by the formula."""

    name = "reference"

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool

    def plan(self, inputs: AttentionInputs) -> ReferencePlan:
        """Look up every visible key's slot in the block tables."""
        size = self._pool.block_size
        key_slots = tuple(
            torch.tensor([table[i // size] * size + i % size for i in range(kv_len)], device=self._pool.device)
            for table, kv_len in zip(inputs.block_tables, inputs.kv_lens, strict=True)
        )
        return ReferencePlan(inputs, key_slots)

    def run(
        self,
        layer_idx: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: ReferencePlan,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """See `AttentionBackend.run`."""
        self._pool.write(layer_idx, plan.inputs.slots, key, value)
        num_heads, num_tokens, head_dim = query.shape
        group = num_heads // key.shape[0]
        out = torch.empty(num_tokens, num_heads, head_dim, dtype=query.dtype, device=query.device)
        starts = plan.inputs.query_starts
        for seq, slots in enumerate(plan.key_slots):
            keys, values = (t.float().repeat_interleave(group, dim=0) for t in self._pool.gather(layer_idx, slots))
            first_index = plan.inputs.kv_lens[seq] - (starts[seq + 1] - starts[seq])
            for row in range(starts[seq], starts[seq + 1]):
                index = first_index + row - starts[seq]
                first_key = 0 if sliding_window is None else max(0, index - sliding_window + 1)
                ahead = max((rows.stop - 1 - row for rows in plan.inputs.atomic_rows if row in rows), default=0)
                visible = slice(first_key, index + ahead + 1)
                scores = torch.einsum("hd,hkd->hk", query[:, row].float(), keys[:, visible]) * scale
                if softcap is not None:
                    scores = torch.tanh(scores / softcap) * softcap
                out[row] = torch.einsum("hk,hkd->hd", scores.softmax(-1), values[:, visible]).to(out.dtype)
        return out

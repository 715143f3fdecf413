"""Attention through torch's scaled_dot_product_attention over gathered pages: any CPU, any GPU, no other package.

Sequences that compute one token are batched (grouped so that padding at most doubles a gather); a longer chunk is a
call of its own. Masks are built from sequence indices once per step and window, and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from backend.runtime.upload import upload

if TYPE_CHECKING:
    from backend.runtime.attention.base import AttentionInputs
    from backend.runtime.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with the same number n of query tokens: one with n > 1, or S of them with n = 1.

    `rows` int64 [S * n] are their places in the flattened step, `indices` int64 [S, n] those tokens' indices in their
    sequences, `last_keys` int64 [S, n] the last key index that each sees, `key_slots` int64 [S, L] the slots of key
    indices 0..L-1 (padded; the mask hides the rest). `whole` says that the queries are the sequence's first n tokens,
    all there is, and each sees those before it, so that plain causal attention needs no mask.
    """

    rows: torch.Tensor
    indices: torch.Tensor
    last_keys: torch.Tensor
    key_slots: torch.Tensor
    whole: bool
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, sliding_window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask [S, n, L]: 0 where the query sees the key, -inf elsewhere. Built at first use."""
        if sliding_window not in self.masks:
            keys = torch.arange(self.key_slots.shape[1], device=self.indices.device)
            visible = keys <= self.last_keys[..., None]
            if sliding_window is not None:
                visible &= keys > self.indices[..., None] - sliding_window
            zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            self.masks[sliding_window] = zeros.masked_fill_(~visible, float("-inf"))
        return self.masks[sliding_window]


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """Where the step's keys go, and the groups that cover its tokens."""

    slots: torch.Tensor
    groups: tuple[Group, ...]


class SdpaAttention:
    """`AttentionBackend` over torch's own kernels."""

    name = "sdpa"

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        if pool.device.type == "cuda":
            # cuDNN's kernels are prepared anew for every length of a context, which would hold up all of a step.
            torch.backends.cuda.enable_cudnn_sdp(False)

    def plan(self, inputs: AttentionInputs) -> SdpaPlan:
        """Group the step's sequences and look up their slots; masks follow when a layer first needs one."""
        lens = [end - start for start, end in zip(inputs.query_starts, inputs.query_starts[1:], strict=False)]
        singles = [seq for seq, query_len in enumerate(lens) if query_len == 1]
        groups = [self._group(inputs, [seq], lens[seq]) for seq in range(len(lens)) if lens[seq] > 1]
        groups += [self._group(inputs, batch, 1) for batch in _by_length(singles, inputs.kv_lens)]
        return SdpaPlan(inputs.slots, tuple(groups))

    def _group(self, inputs: AttentionInputs, seqs: list[int], query_len: int) -> Group:
        device = self._pool.device
        kv_len = max(inputs.kv_lens[s] for s in seqs)
        num_blocks = -(-kv_len // self._pool.block_size)
        tables = [inputs.block_tables[s][: -(-inputs.kv_lens[s] // self._pool.block_size)] for s in seqs]
        # Padded with a block of its own: no mask multiplies away what is no finite number in a foreign one.
        padded = upload([table + table[-1:] * (num_blocks - len(table)) for table in tables], torch.int64, device)
        offsets = torch.arange(self._pool.block_size, device=device)
        key_slots = (padded[..., None] * self._pool.block_size + offsets).flatten(1)
        start, end = inputs.query_starts[seqs[0]], inputs.query_starts[seqs[0]] + query_len
        if query_len == 1:
            rows = upload([inputs.query_starts[s] for s in seqs], torch.int64, device)
            indices = upload([inputs.kv_lens[s] - 1 for s in seqs], torch.int64, device)[:, None]
        else:
            rows = torch.arange(start, end, device=device)
            indices = torch.arange(kv_len - query_len, kv_len, device=device)[None]
        atomic = [r for r in inputs.atomic_rows if query_len > 1 and start <= r.start < end]
        last_keys = indices.clone() if atomic else indices
        whole = kv_len == query_len and not atomic
        if whole or device.type == "cpu":
            # Elsewhere whole blocks are gathered: a GPU's kernels want masks whose rows begin at multiples of 16 bytes.
            key_slots = key_slots[:, :kv_len]
        for r in atomic:
            last_keys[:, r.start - start : r.stop - start] = kv_len - end + r.stop - 1
        return Group(rows, indices, last_keys, key_slots, whole=whole)

    def run(
        self,
        layer_idx: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """See `AttentionBackend.run`."""
        self._pool.write(layer_idx, plan.slots, key, value)
        num_heads, num_tokens, head_dim = query.shape
        out = torch.empty(num_tokens, num_heads, head_dim, dtype=query.dtype, device=query.device)
        for group in plan.groups:
            keys, values = self._pool.gather(layer_idx, group.key_slots)
            attended = _attend(query.index_select(1, group.rows), keys, values, group, scale, sliding_window, softcap)
            out.index_copy_(0, group.rows, attended)
        return out


def _by_length(seqs: list[int], kv_lens: tuple[int, ...]) -> Iterator[list[int]]:
    """Split single-token sequences so that the longest of a batch is at most twice its shortest."""
    batch: list[int] = []
    for seq in sorted(seqs, key=lambda s: kv_lens[s]):
        if batch and kv_lens[seq] > 2 * kv_lens[batch[0]]:
            yield batch
            batch = []
        batch.append(seq)
    if batch:
        yield batch


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: Group,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Query [Hq, S * n, D] over keys and values [S, Hkv, L, D] -> [S * n, Hq, D].

    Query heads that share a key head are laid along an axis that broadcasts over the keys, so that grouped-query
    attention neither repeats keys nor depends on which kernels know it.
    """
    num_seqs, num_kv_heads, _, head_dim = keys.shape
    num_heads, num_rows, _ = query.shape
    ratio, query_len = num_heads // num_kv_heads, num_rows // num_seqs
    if query_len == 1:
        # [S, Hkv, G, D]: the heads of a group are the rows of one small matrix.
        queries = query.transpose(0, 1).reshape(num_seqs, num_kv_heads, ratio, head_dim)
    else:
        # [Hkv, G, n, D] over keys [Hkv, 1, L, D], expanded without a copy.
        queries = query.reshape(num_kv_heads, ratio, query_len, head_dim)
        keys, values = (t[0, :, None].expand(-1, ratio, -1, -1) for t in (keys, values))
    if softcap is not None:
        scores = torch.tanh(queries @ keys.transpose(-1, -2) * (scale / softcap)) * softcap
        weights = (scores + group.mask(sliding_window, query.dtype)[:, None]).softmax(-1, dtype=torch.float32)
        attended = weights.to(values.dtype) @ values
    elif group.whole and query_len > 1 and sliding_window is None:
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
    else:
        mask = group.mask(sliding_window, query.dtype)[:, None]
        attended = F.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
    if query_len == 1:
        return attended.reshape(num_seqs, num_heads, head_dim)
    return attended.reshape(num_heads, query_len, head_dim).transpose(0, 1)

"""Attention straight out of the paged pool: torch's FlexAttention, whose block mask names each sequence's own pages.

No key or value is copied. The pool's blocks are the mask's blocks, so a kernel visits a sequence's pages and no others,
in order of index; which keys of a visited page a token sees follows from their indices. Query heads that share a key
head lie in one row of tiles, so that a page is read once for all of them. (FlexAttention: arXiv 2412.05496.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask, FlexKernelOptions, flex_attention

from backend.runtime.upload import upload

if TYPE_CHECKING:
    from backend.runtime.attention.base import AttentionInputs
    from backend.runtime.kv_pool import KvPool

_NOT_OWN = 1 << 24
"""The place, in blocks, of pages that are not the sequence's: behind the last key of any."""

_FEW_ROWS, _MANY_ROWS = 16, 64
"""Rows of a tile for single tokens and for chunks; 16 is the least that a GPU multiplies."""

_MAX_GRAPHS = 64
"""Kinds of step that are compiled: one sequence or several, a token or a chunk, for each model shape and dtype."""


def _kernel_options(mask: BlockMask) -> FlexKernelOptions:
    """Not torch's choice between two kernels, for the one for short queries takes no tiles of ours; nor its own tiles.

    Those of some releases are larger than ours, and refused.
    """
    rows, keys = mask.BLOCK_SIZE
    return {"BACKEND": "TRITON", "BLOCK_M": rows, "BLOCK_N": keys}


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with the same number n of query tokens: one with n > 1, or S of them with n = 1.

    `rows` int64 [S * n] are their places in the flattened step; `indices` and `last_keys` are, for each sequence, its
    tokens' indices and the last key index that each sees. `tables` int64 [S, L] are the sequences' blocks (padded with
    a block that the pool lacks), `places` int32 [S, B + 1] the same turned round: which of its blocks each one is.
    """

    rows: torch.Tensor
    indices: tuple[range, ...]
    last_keys: tuple[list[int], ...]
    tables: torch.Tensor
    places: torch.Tensor
    masks: dict[tuple[int | None, int], BlockMask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlexPlan:
    """Where the step's keys go, and the groups that cover its tokens."""

    slots: torch.Tensor
    groups: tuple[Group, ...]


class FlexAttention:
    """`AttentionBackend` over FlexAttention: compiled on a GPU, at the first step of each kind.

    On a CPU it is torch's eager form, which computes every score of the pool: for tests.
    """

    name = "flex"

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._block_size = torch.tensor(pool.block_size, dtype=torch.int32, device=pool.device)
        self._score_mods: dict[float, Callable[..., torch.Tensor]] = {}
        self._attend: Callable[..., Any] = flex_attention
        if pool.device.type != "cpu":
            self._attend = compiled()

    def plan(self, inputs: AttentionInputs) -> FlexPlan:
        """Group the step's sequences and turn their block tables round; masks follow when a layer first needs one."""
        lens = [end - start for start, end in zip(inputs.query_starts, inputs.query_starts[1:], strict=False)]
        singles = [seq for seq, query_len in enumerate(lens) if query_len == 1]
        groups = [self._group(inputs, [seq], lens[seq]) for seq in range(len(lens)) if lens[seq] > 1]
        groups += [self._group(inputs, singles, 1)] if singles else []
        return FlexPlan(inputs.slots, tuple(groups))

    def _group(self, inputs: AttentionInputs, seqs: list[int], query_len: int) -> Group:
        device = self._pool.device
        tables = [inputs.block_tables[s][: -(-inputs.kv_lens[s] // self._pool.block_size)] for s in seqs]
        most = max(map(len, tables))
        num_blocks = self._pool.num_blocks
        padded = upload([table + (num_blocks,) * (most - len(table)) for table in tables], torch.int64, device)
        places = torch.full((len(seqs), num_blocks + 1), _NOT_OWN, dtype=torch.int32, device=device)
        own = torch.arange(most, dtype=torch.int32, device=device)
        places.scatter_(1, padded, own.expand(len(seqs), -1))
        rows = [row for s in seqs for row in range(inputs.query_starts[s], inputs.query_starts[s + 1])]
        indices = tuple(range(inputs.kv_lens[s] - query_len, inputs.kv_lens[s]) for s in seqs)
        last_keys = tuple(list(tokens) for tokens in indices)
        start, end = rows[0], rows[0] + query_len
        for r in (r for r in inputs.atomic_rows if query_len > 1 and start <= r.start < end):
            last_keys[0][r.start - start : r.stop - start] = [indices[0][r.stop - 1 - start]] * len(r)
        return Group(upload(rows, torch.int64, device), indices, last_keys, padded, places)

    def run(
        self,
        layer_idx: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: FlexPlan,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """See `AttentionBackend.run`."""
        self._pool.write(layer_idx, plan.slots, key, value)
        num_heads, num_tokens, head_dim = query.shape
        num_kv_heads = self._pool.num_kv_heads
        ratio = num_heads // num_kv_heads
        # [1, Hkv, slot, D]: views of the pool.
        keys, values = (
            t[layer_idx].unflatten(1, (num_kv_heads, head_dim)).transpose(0, 1)[None]
            for t in (self._pool.keys, self._pool.values)
        )
        score_mod = None if softcap is None else self._score_mod(softcap)
        out = torch.empty(num_tokens, num_heads, head_dim, dtype=query.dtype, device=query.device)
        for group in plan.groups:
            num_seqs, query_len = len(group.indices), len(group.indices[0])
            # [Hq, S * n, D] -> [S, Hkv, n * G, D]
            queries = query.index_select(1, group.rows).view(num_kv_heads, ratio, num_seqs, query_len, head_dim)
            queries = queries.permute(2, 0, 3, 1, 4).reshape(num_seqs, num_kv_heads, query_len * ratio, head_dim)
            mask = self._mask(group, sliding_window, ratio)
            options = _kernel_options(mask)
            attended = self._attend(queries, keys, values, score_mod, mask, scale=scale, kernel_options=options)
            attended = attended.unflatten(2, (query_len, ratio)).transpose(1, 2).reshape(-1, num_heads, head_dim)
            out.index_copy_(0, group.rows, attended)
        return out

    def _score_mod(self, softcap: float) -> Callable[..., torch.Tensor]:
        """The cap as FlexAttention wants it; made once, for it waits for the device."""
        if softcap not in self._score_mods:
            cap = torch.tensor(softcap, dtype=torch.float32, device=self._pool.device)
            self._score_mods[softcap] = _capped(cap)
        return self._score_mods[softcap]

    def _mask(self, group: Group, sliding_window: int | None, ratio: int) -> BlockMask:
        """The group's block mask for rows of `ratio` query heads a token. Built at first use."""
        known = group.masks.get((sliding_window, ratio))
        if known is not None:
            return known
        device, size = self._pool.device, self._pool.block_size
        first_keys = [
            [0 if sliding_window is None else max(0, index - sliding_window + 1) for index in indices]
            for indices in group.indices
        ]
        num_rows = len(group.indices[0]) * ratio
        tile = _FEW_ROWS if num_rows <= _FEW_ROWS else _MANY_ROWS
        tokens = [range(row // ratio, -(-min(row + tile, num_rows) // ratio)) for row in range(0, num_rows, tile)]
        first_blocks = [[firsts[t.start] // size for t in tokens] for firsts in first_keys]
        end_blocks = [[max(lasts[t.start : t.stop]) // size + 1 for t in tokens] for lasts in group.last_keys]
        visited = upload(first_blocks, torch.int64, device)
        num_visited = upload(end_blocks, torch.int64, device) - visited
        # [S, tiles, L]: where among the sequence's blocks each visited one stands; what lies behind them is never read.
        most = group.tables.shape[1]
        ordinals = (visited[..., None] + torch.arange(most, device=device)).clamp_(max=most - 1)
        # As wide as the pool because torch demands it; the rest costs no time.
        blocks = torch.empty(*visited.shape, self._pool.num_blocks, dtype=torch.int32, device=device)
        blocks[..., :most] = group.tables.gather(1, ordinals.flatten(1)).view(*visited.shape, most)
        mask = BlockMask.from_kv_blocks(
            num_visited[:, None].int(),
            blocks[:, None],
            BLOCK_SIZE=(tile, size),
            mask_mod=_visible(
                group.places,
                upload(first_keys, torch.int32, device).repeat_interleave(ratio, dim=1),
                upload(group.last_keys, torch.int32, device).repeat_interleave(ratio, dim=1),
                self._block_size,
            ),
            seq_lengths=(num_rows, self._pool.num_blocks * size),
            compute_q_blocks=False,
        )
        group.masks[sliding_window, ratio] = mask
        return mask


def compiled(backend: str = "inductor") -> Callable[..., Any]:
    """FlexAttention in graphs that serve steps of all sizes."""
    attend: Callable[..., Any] = flex_attention
    # The overloads that torch declares lack one of its own arguments.
    return torch.compile(  # type: ignore[call-overload]
        attend, dynamic=True, fullgraph=True, recompile_limit=_MAX_GRAPHS, backend=backend
    )


# Numbers that the functions below use are tensors: as Python's, they would be symbols of the compiled graph.


def _visible(
    places: torch.Tensor, first_keys: torch.Tensor, last_keys: torch.Tensor, block_size: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Whether sequence b's row q sees slot k of the pool."""

    def mask_mod(b: torch.Tensor, _h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        index = places[b, k // block_size] * block_size + k % block_size
        return (index >= first_keys[b, q]) & (index <= last_keys[b, q])

    return mask_mod


def _capped(softcap: torch.Tensor) -> Callable[..., torch.Tensor]:
    def score_mod(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return torch.tanh(score / softcap) * softcap

    return score_mod

"""Step -> StepTensors: the chunks of one step laid end to end, as the model and the attention backend want them.

Nothing is decided here: tokens, positions, blocks and image rows are exactly those the Step names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import torch

from backend.runtime.attention.base import AttentionInputs
from backend.runtime.upload import upload
from backend.types.step import Chunk, EmbedSlice


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One flattened step of T tokens.

    `token_ids` int64 [T] (0 where an image row goes: an image token's id may lie outside the embedding table);
    `positions` int64 [R, T]; `embeds` with `dest` counted in the flattened step; `sample_rows` int64 [n], the rows
    whose logits choose a token: for each of `sampling_chunks`, in order, those of its last `num_drafts + 1` tokens.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionInputs
    embeds: tuple[EmbedSlice, ...]
    sample_rows: torch.Tensor
    sampling_chunks: tuple[Chunk, ...]


def build_step_tensors(
    chunks: Sequence[Chunk], *, block_size: int, num_position_rows: int, device: torch.device
) -> StepTensors:
    """Lay `chunks` (at least one, none empty) end to end. A pure function of its arguments."""
    if all(len(c.token_ids) == 1 and c.samples and not c.embeds for c in chunks):
        return _build_decodes(tuple(chunks), block_size, num_position_rows, device)
    starts = tuple(accumulate((c.num_tokens for c in chunks), initial=0))
    placed = list(zip(chunks, starts, strict=False))
    embeds = tuple(replace(e, dest=start + e.dest) for chunk, start in placed for e in chunk.embeds)
    token_ids = list(chain.from_iterable(c.token_ids for c in chunks))
    for e in embeds:
        token_ids[e.dest : e.dest + e.length] = [0] * e.length
    positions = [list(chain.from_iterable(c.positions[row] for c in chunks)) for row in range(num_position_rows)]
    slots = [slot for chunk in chunks for slot in _slots(chunk, block_size)]
    sampling = [(chunk, start + chunk.num_tokens) for chunk, start in placed if chunk.samples]
    sample_rows = [row for chunk, end in sampling for row in range(end - 1 - chunk.num_drafts, end)]
    return StepTensors(
        token_ids=upload(token_ids, torch.int64, device),
        positions=upload(positions, torch.int64, device),
        attention=AttentionInputs(
            query_starts=starts,
            kv_lens=tuple(c.start + c.num_tokens for c in chunks),
            block_tables=tuple(c.block_ids for c in chunks),
            slots=upload(slots, torch.int64, device),
            atomic_rows=tuple(range(e.dest, e.dest + e.length) for e in embeds if e.atomic),
        ),
        embeds=embeds,
        sample_rows=upload(sample_rows, torch.int64, device),
        sampling_chunks=tuple(chunk for chunk, _ in sampling),
    )


def _build_decodes(
    chunks: tuple[Chunk, ...], block_size: int, num_position_rows: int, device: torch.device
) -> StepTensors:
    """The same for chunks of one token each, all of which sample, as most steps are: a row each, and one upload."""
    num_rows = len(chunks)
    numbers = upload(
        [
            [c.token_ids[0] for c in chunks],
            [c.block_ids[c.start // block_size] * block_size + c.start % block_size for c in chunks],
            range(num_rows),
            *([c.positions[row][0] for c in chunks] for row in range(num_position_rows)),
        ],
        torch.int64,
        device,
    )
    return StepTensors(
        token_ids=numbers[0],
        positions=numbers[3:],
        attention=AttentionInputs(
            query_starts=tuple(range(num_rows + 1)),
            kv_lens=tuple([c.start + 1 for c in chunks]),
            block_tables=tuple([c.block_ids for c in chunks]),
            slots=numbers[1],
        ),
        embeds=(),
        sample_rows=numbers[2],
        sampling_chunks=chunks,
    )


def _slots(chunk: Chunk, block_size: int) -> list[int]:
    """Where each of the chunk's tokens keeps its keys and values."""
    indices = range(chunk.start, chunk.start + chunk.num_tokens)
    return [chunk.block_ids[i // block_size] * block_size + i % block_size for i in indices]

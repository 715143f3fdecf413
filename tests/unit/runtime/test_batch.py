"""A Step's chunks, laid end to end: nothing lost, nothing invented."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backend.runtime.batch import build_step_tensors
from backend.types.request import SamplingParams
from backend.types.step import Chunk, EmbedSlice

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def chunk(
    request_id: str,
    start: int,
    token_ids: tuple[int, ...],
    block_ids: tuple[int, ...],
    *,
    embeds: tuple[EmbedSlice, ...] = (),
    samples: bool = False,
    shift: int = 0,
) -> Chunk:
    positions = range(start + shift, start + shift + len(token_ids))
    return Chunk(request_id, start, token_ids, (positions,), block_ids, embeds, samples, 0, GREEDY, is_decode=False)


def test_chunks_are_laid_end_to_end() -> None:
    tensors = build_step_tensors(
        [
            chunk("a", 3, (10, 11, 12), (7, 2), embeds=(EmbedSlice("k", 5, 1, 2),)),
            chunk("b", 0, (20,), (4,), samples=True),
            chunk("c", 8, (30, 31), (1, 3, 0), embeds=(EmbedSlice("k", 0, 0, 1),), samples=True, shift=-2),
        ],
        block_size=4,
        num_position_rows=1,
        device=torch.device("cpu"),
    )
    assert tensors.token_ids.tolist() == [10, 0, 0, 20, 0, 31], "image rows have a safe id"
    assert tensors.positions.tolist() == [[3, 4, 5, 0, 6, 7]]
    assert tensors.attention.query_starts == (0, 3, 4, 6)
    assert tensors.attention.kv_lens == (6, 1, 10)
    assert tensors.attention.block_tables == ((7, 2), (4,), (1, 3, 0))
    assert tensors.attention.slots.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 4 * 4, 0, 1]
    assert tensors.embeds == (EmbedSlice("k", 5, 1, 2), EmbedSlice("k", 0, 4, 1))
    assert tensors.sample_rows.tolist() == [3, 5]
    assert [c.request_id for c in tensors.sampling_chunks] == ["b", "c"]


def test_positions_keep_their_rows() -> None:
    rows = (range(5, 7), (9, 9), (3, 4))
    three = Chunk("a", 0, (1, 2), rows, (0,), (), False, 0, GREEDY, is_decode=False)
    tensors = build_step_tensors([three], block_size=4, num_position_rows=3, device=torch.device("cpu"))
    assert tensors.positions.tolist() == [[5, 6], [9, 9], [3, 4]]
    assert tensors.sample_rows.tolist() == []


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_step_of_single_tokens_is_laid_out_as_any_other(num_rows: int) -> None:
    """The short way gives what the long one gives."""
    chunks = [
        Chunk(
            f"r{i}", i, (40 + i,), tuple(range(i + row, i + row + 1) for row in range(num_rows)), (9 - i, i), (), True,
            i, GREEDY, is_decode=i > 0,
        )
        for i in range(8)
    ]  # fmt: skip
    options: dict[str, Any] = {
        "block_size": 4,
        "num_position_rows": num_rows,
        "device": torch.device("cpu"),
    }
    quick = build_step_tensors(chunks, **options)
    # A chunk of two tokens before them makes it the long way.
    first = chunk("first", 0, (1, 2), (3,))._replace(positions=(range(2),) * num_rows)
    whole = build_step_tensors([first, *chunks], **options)
    assert quick.token_ids.tolist() == whole.token_ids[2:].tolist()
    assert quick.positions.tolist() == whole.positions[:, 2:].tolist()
    assert quick.attention.slots.tolist() == whole.attention.slots[2:].tolist()
    assert quick.attention.query_starts == tuple(start - 2 for start in whole.attention.query_starts[1:])
    assert quick.attention.kv_lens == whole.attention.kv_lens[1:]
    assert quick.attention.block_tables == whole.attention.block_tables[1:]
    assert quick.sample_rows.tolist() == [row - 2 for row in whole.sample_rows.tolist()]
    assert quick.sampling_chunks == whole.sampling_chunks
    for ours, theirs in ((quick.token_ids, whole.token_ids), (quick.positions, whole.positions)):
        assert (ours.dtype, ours.is_contiguous()) == (theirs.dtype, True)

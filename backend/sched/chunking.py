"""Where a chunk of a sequence may end: inside the budgets, before an image that is not there, around atomic spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backend.sched.sequence import Sequence


def chunk_end(seq: Sequence, soft: int, hard: int, is_resident: Callable[[str], bool]) -> int:
    """End of the longest chunk of `seq` from `seq.computed` on; `seq.computed` itself if none is possible.

    The chunk has at most `soft` tokens, and stops just before the first placeholder whose image is not resident. An
    atomic span is taken whole or not at all: one that begins the chunk may overshoot `soft`, never `hard`.
    """
    start = seq.computed
    end = min(seq.total, start + min(soft, hard))
    if end <= start or not seq.spans:
        return max(start, end)
    for span in seq.pending_spans():
        if span.start >= end:
            break
        if not is_resident(span.key):
            return max(span.start, start)
        if span.atomic and span.end > end:
            if span.start > start:
                return span.start
            return span.end if span.end - start <= hard else start
    return end


def longest_atomic(seqs: Iterable[Sequence]) -> int:
    """Tokens of the longest span that may not be split and is still to be computed by one of `seqs`; 0 if none is."""
    return max((span.length for seq in seqs for span in seq.pending_spans() if span.atomic), default=0)


def hit_len(seq: Sequence, num_blocks: int) -> int:
    """Tokens that `num_blocks` cached blocks are good for: whole blocks, and no atomic span in part."""
    size = seq.table.block_size
    length = num_blocks * size
    for span in reversed(seq.spans):
        if span.atomic and span.start < length < span.end:
            length = span.start // size * size
    return length

"""A step while it is being made: what is booked so far, and which images its chunks read."""

from __future__ import annotations

from collections.abc import Mapping

from backend.sched.sequence import Sequence
from backend.types.step import Chunk, EncodeSlice, Step


class Booking:
    """Chunks, encoder slices and their sequences, in the order they were booked; becomes a `Step`.

    `guesses` are those that there is room for, by request.
    """

    def __init__(self, step_id: int, hard_num_tokens: int, guesses: Mapping[str, tuple[int, ...]]) -> None:
        self.step_id = step_id
        self.seqs: list[Sequence] = []
        self.images_in_use: dict[str, None] = {}
        self.num_tokens = 0
        self._hard_num_tokens = hard_num_tokens
        self._guesses = guesses
        self._chunks: list[Chunk] = []
        self._encodes: tuple[EncodeSlice, ...] = ()

    @property
    def hard_room(self) -> int:
        """Tokens that memory has room for."""
        return self._hard_num_tokens - self.num_tokens

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self._chunks and not self._encodes

    def holds(self, seq: Sequence) -> bool:
        """Whether a chunk of `seq` is booked."""
        return any(booked is seq for booked in self.seqs)

    def guesses_for(self, seq: Sequence) -> tuple[int, ...]:
        """Guesses at the tokens of `seq` that memory has room for behind one more token."""
        if not self._guesses or not seq.is_decoding:
            return ()
        return self._guesses.get(seq.request_id, ())[: max(0, self.hard_room - 1)]

    def add_chunk(self, seq: Sequence, end: int, drafts: tuple[int, ...] = ()) -> None:
        """Book `seq` up to `end`, and `drafts` behind it; its blocks are there and its images resident."""
        chunk = seq.advance(end, self.step_id, drafts)
        self._chunks.append(chunk)
        self.seqs.append(seq)
        self.num_tokens += chunk.num_tokens
        for embed in chunk.embeds:
            self.images_in_use[embed.key] = None

    def try_decode(self, seq: Sequence, num_tokens: int) -> bool:
        """Book the one token that `seq` has left, if the step then holds at most `num_tokens`.

        Only where nothing is to be weighed: no guesses, no block to be taken, no bound in the way. The rest is
        `Scheduler`'s to book, which comes to the same in all of these cases.
        """
        if not seq.is_decoding or self.num_tokens >= num_tokens or self.num_tokens >= self._hard_num_tokens:
            return False
        table = seq.table
        if seq.computed >= len(table) * table.block_size or seq.request_id in self._guesses:
            return False
        self._chunks.append(seq.decode(self.step_id))
        self.seqs.append(seq)
        self.num_tokens += 1
        return True

    def add_encodes(self, encodes: tuple[EncodeSlice, ...]) -> None:
        """Book the step's encoder slices."""
        self._encodes = encodes

    def finish(self, evictions: tuple[str, ...]) -> Step:
        """The step as a value."""
        return Step(self.step_id, tuple(self._chunks), self._encodes, evictions)

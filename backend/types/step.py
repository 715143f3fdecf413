"""A step as a value: what is computed together, complete enough to be run, logged and replayed by others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from backend.types.request import ImageInput, PositionRows, SamplingParams

AWAITED_TOKEN_ID = -1
"""Stands in a chunk for the token that the step before it samples for the same request, and nobody knows yet."""


@dataclass(frozen=True, slots=True)
class EmbedSlice:
    """Rows `[row, row + length)` of image `key` replace the chunk's tokens `[dest, dest + length)`.

    With `atomic` they are a whole span whose tokens see one another in both directions.
    """

    key: str
    row: int
    dest: int
    length: int
    atomic: bool = False


class Chunk(NamedTuple):
    """Tokens `[start, start + len(token_ids))` of one sequence, computed in one step.

    A decode is a chunk of one token and `num_drafts` guesses at what comes after it. A guess is kept if the token
    before it leads to it, which its own row of logits shows; so a sampling chunk chooses from `num_drafts + 1` rows.

    `block_ids` is the sequence's block table, long enough for the chunk's last token; KV of index i lies in block
    `block_ids[i // block_size]` at `i % block_size`. `samples` says that the last token's logits choose the next
    token, which will be output number `sample_index` (0-based; with the seed it fixes the draw, so that a preempted
    sequence repeats itself). `is_decode` is for reading the step, not for computing it.
    A decode of a step made ahead may be of `AWAITED_TOKEN_ID`, which whoever computes the steps knows by then.
    `prompt` and `history` are the sequence's prompt and output tokens so far, filled where the choice of the next token
    needs them, and where the prompt's own log-probabilities are asked for.

    A tuple, as `TokenEvent` is: a step makes one for each running answer, and a frozen dataclass takes four times as
    long to make.
    """

    request_id: str
    start: int
    token_ids: tuple[int, ...]
    positions: PositionRows
    block_ids: tuple[int, ...]
    embeds: tuple[EmbedSlice, ...]
    samples: bool
    sample_index: int
    sampling: SamplingParams
    is_decode: bool
    prompt: tuple[int, ...] = ()
    history: tuple[int, ...] = ()
    num_drafts: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this chunk, guesses included."""
        return len(self.token_ids)

    @property
    def drafts(self) -> tuple[int, ...]:
        """The guesses."""
        return self.token_ids[len(self.token_ids) - self.num_drafts :]


@dataclass(frozen=True, slots=True)
class EncodeSlice:
    """Advance the encoder for `image` by `num_slices` pieces, starting at piece `first_slice`.

    A runner that meets `first_slice == 0` starts the image; `first_slice + num_slices == image.num_slices` ends it
    and makes its embeddings resident. `mates` are images alike that go through the encoder with it, as one batch: they
    begin together and stay together, except for those that are evicted on the way.
    """

    image: ImageInput
    first_slice: int
    num_slices: int
    mates: tuple[ImageInput, ...] = ()

    @property
    def images(self) -> tuple[ImageInput, ...]:
        """All that are advanced."""
        return (self.image, *self.mates)

    @property
    def is_last(self) -> bool:
        """Whether the image's embeddings are resident after this slice."""
        return self.first_slice + self.num_slices == self.image.num_slices


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step as a value: frozen, complete, loggable, replayable.

    `evictions` (image keys, resident or half encoded) are dropped before anything else; `encodes` are advanced, then
    `chunks` are computed together. An embedding used by a chunk was resident before this step began.
    """

    step_id: int
    chunks: tuple[Chunk, ...]
    encodes: tuple[EncodeSlice, ...] = ()
    evictions: tuple[str, ...] = ()

    @property
    def num_decode_tokens(self) -> int:
        """Tokens of running decodes, guesses included."""
        return sum(c.num_tokens for c in self.chunks if c.is_decode)

    @property
    def num_draft_tokens(self) -> int:
        """Guesses at tokens of running decodes."""
        return sum(c.num_drafts for c in self.chunks)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompt chunks (recomputed outputs of a preempted sequence included)."""
        return sum(c.num_tokens for c in self.chunks if not c.is_decode)

    @property
    def num_encoder_slices(self) -> int:
        """Pieces of vision encoding; a batch's are counted once."""
        return sum(e.num_slices for e in self.encodes)

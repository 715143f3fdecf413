"""A runner without a model, for tests of the scheduler: it computes nothing and believes nothing.

KV is a dictionary slot -> cell, where a cell says what that KV was computed from: its token, its image row, and
everything before it. Executing a Step writes the cells of its chunks, then reads every chunk's whole visible context
back and compares it with the request's own tokens and images, so that any wrong sharing, overwriting or skipping shows
itself. All other promises of `backend.types.step.Step` are checked on the way. A broken promise raises AssertionError.

The sampled token is a hash of the context, so that a request's answer does not depend on how it was scheduled. With
seed `COPIES` it is, but for every tenth or so, what the prompt says at the same place: an answer that can be guessed.

Guesses are believed no more than anything else: each leaves the KV of a text that may never be said, and the runner
keeps those that its own next token proves right. A step made ahead is computed before the one before it is told of:
where it says `AWAITED_TOKEN_ID`, the runner knows the token.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

from backend.types.request import ImageInput, Request
from backend.types.result import FinishReason, StepResult, TokenEvent
from backend.types.scheduler import SchedulerLimits
from backend.types.step import AWAITED_TOKEN_ID, Chunk, EncodeSlice, Step

VOCAB_SIZE = 61
COPIES = 2
IMAGE_TOKEN = 99

Cell = tuple[int, str | None, int, int]
"""(token id, image key, image row, checksum of everything up to here)."""


@dataclass
class Truth:
    """What the runner knows of a request by itself: its cells so far, and what it was answered."""

    request: Request
    cells: list[Cell] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_computed: int = 0

    def __post_init__(self) -> None:
        rows = {
            span.start + i: (span.key, span.offset + i)
            for span in self.request.prompt.spans
            for i in range(span.length)
        }
        for index, token_id in enumerate(self.request.prompt.token_ids):
            self.push(token_id, *rows.get(index, (None, -1)))

    def push(self, token_id: int, key: str | None = None, row: int = -1) -> None:
        """Append a token to the known sequence."""
        before = self.cells[-1][3] if self.cells else 0
        self.cells.append((token_id, key, row, zlib.crc32(repr((token_id, key, row)).encode(), before)))

    def with_guesses(self, token_ids: Iterable[int]) -> Truth:
        """What would be known if these tokens came next."""
        wild = copy(self)
        wild.cells, wild.outputs = list(self.cells), list(self.outputs)
        for token_id in token_ids:
            wild.push(token_id)
            wild.outputs.append(token_id)
        return wild

    def next_token(self) -> int:
        """The token that the whole sequence so far leads to."""
        number, seed = len(self.outputs), self.request.sampling.seed
        drawn = zlib.crc32(repr((number, seed)).encode(), self.cells[-1][3])
        prompt = self.request.prompt.token_ids
        if seed == COPIES and drawn % 10:
            return prompt[number % len(prompt)] % VOCAB_SIZE
        return drawn % VOCAB_SIZE


def expected_answer(request: Request, limits: SchedulerLimits) -> tuple[list[int], FinishReason]:
    """What `request` is answered if nothing fails, whatever happens around it."""
    truth = Truth(request)
    context_len = min(limits.max_model_len, limits.num_blocks * limits.block_size + 1)
    while True:
        token_id = truth.next_token()
        if token_id in request.sampling.stop_token_ids:
            return truth.outputs, FinishReason.STOP
        truth.push(token_id)
        truth.outputs.append(token_id)
        if len(truth.outputs) == request.sampling.max_tokens or len(truth.cells) == context_len:
            return truth.outputs, FinishReason.LENGTH


class ContractRunner:
    """Executes Steps on cells instead of tensors."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._context_len = min(limits.max_model_len, limits.num_blocks * limits.block_size + 1)
        self.truths: dict[str, Truth] = {}
        self.num_encodings: dict[str, int] = {}
        self.may_encode_at_will = False
        self._kv: dict[int, Cell] = {}
        self._slices_done: dict[str, int] = {}
        self._embeds: dict[str, int] = {}
        self._batches: dict[str, int] = {}
        self._next_step_id = 0
        self._sampled: dict[str, tuple[int, ...]] = {}
        self._failed: frozenset[str] = frozenset()

    def admit(self, request: Request) -> None:
        """Learn of a request that the scheduler took."""
        self.truths[request.request_id] = Truth(request)

    def forget(self, request_id: str) -> None:
        """Learn that a request was cancelled: no later step may name it."""
        self.truths[request_id].finish_reason = FinishReason.CANCELLED

    def execute(self, step: Step, failed_requests: Iterable[str] = (), failed_images: Iterable[str] = ()) -> StepResult:
        """Run a step; the KV of a failed request's chunk is left unwritten, a failed image is gone."""
        assert step.step_id == self._next_step_id, "step ids have a gap"
        self._next_step_id += 1
        assert step.chunks or step.encodes or step.evictions, "an empty step"
        self._evict(step)
        resident = {key for key, done in self._slices_done.items() if done < 0}
        for encode in step.encodes:
            self._encode(encode)
        self._check_slices(step)
        self._compute(step, resident)
        again = [chunk.request_id for chunk in step.chunks if self._is_lost(chunk)]
        failed_requests = dict.fromkeys([*failed_requests, *again], "chunk failed")
        for chunk in step.chunks:
            if chunk.request_id in failed_requests:
                for index in range(chunk.start, chunk.start + chunk.num_tokens):
                    self._kv.pop(self._slot(chunk, index), None)
        failed_images = dict.fromkeys(failed_images, "encoder failed")
        for key in failed_images:
            del self._slices_done[key], self._embeds[key], self._batches[key]
        sampled = {c.request_id: self._sample(c) for c in step.chunks if c.samples}
        self._sampled, self._failed = sampled, frozenset(failed_requests)
        return StepResult(
            step.step_id,
            {key: token_ids for key, token_ids in sampled.items() if key not in failed_requests},
            failed_requests,
            failed_images,
        )

    def take_events(self, events: tuple[TokenEvent, ...], result: StepResult) -> None:
        """Check the scheduler's word against what was sampled."""
        for request_id, token_ids in result.sampled.items():
            self.truths[request_id].num_computed += len(token_ids) - 1
        left = {key: list(token_ids) for key, token_ids in result.sampled.items()}
        for event in events:
            truth = self.truths[event.request_id]
            assert truth.finish_reason is None, "an event after the end"
            truth.finish_reason = event.finish_reason
            if event.finish_reason is FinishReason.ERROR:
                assert event.error, "an error without a reason"
                continue
            token_id = left[event.request_id].pop(0)
            if event.token_id is None:
                assert event.finish_reason is FinishReason.STOP
                assert token_id in truth.request.sampling.stop_token_ids
                continue
            assert event.token_id == token_id
            truth.push(token_id)
            truth.outputs.append(token_id)
        for request_id, token_ids in left.items():
            assert not token_ids or self.truths[request_id].finish_reason is not None, "a sampled token was lost"

    def _sample(self, chunk: Chunk) -> tuple[int, ...]:
        """Guesses as far as they are right, and the token after them."""
        sampled: list[int] = []
        for guess in (*chunk.drafts, None):
            sampled.append(self._known(chunk).with_guesses(sampled).next_token())
            if sampled[-1] != guess:
                break
        return tuple(sampled)

    def _known(self, chunk: Chunk) -> Truth:
        """What is known of a chunk's request: of one made ahead, the token that it awaits as well."""
        truth = self.truths[chunk.request_id]
        if chunk.token_ids[0] != AWAITED_TOKEN_ID:
            return truth
        (token_id,) = self._sampled[chunk.request_id]
        return truth.with_guesses((token_id,))

    def _is_lost(self, chunk: Chunk) -> bool:
        """Whether it goes on from a step that failed for its request, so that nothing will come of it."""
        return chunk.request_id in self._failed

    def _slot(self, chunk: Chunk, index: int) -> int:
        size = self.limits.block_size
        return chunk.block_ids[index // size] * size + index % size

    def _evict(self, step: Step) -> None:
        for key in step.evictions:
            del self._slices_done[key], self._embeds[key], self._batches[key]

    def _encode(self, encode: EncodeSlice) -> None:
        """All images of a batch, which are alike, began in one step and are still all of it."""
        assert encode.num_slices >= 1, "an encoder slice of nothing"
        assert len(encode.images) <= self.limits.max_encoder_batch, "too many images at once"
        assert all(encode.image.is_alike(mate) for mate in encode.mates), "unlike images in a batch"
        batch = sum(self.num_encodings.values())
        for image in encode.images:
            self._advance(image, encode, batch)
        batch = self._batches[encode.image.key]
        batch_keys = {key for key, number in self._batches.items() if number == batch}
        assert {image.key for image in encode.images} == batch_keys, "a batch is torn apart"

    def _advance(self, image: ImageInput, encode: EncodeSlice, batch: int) -> None:
        key = image.key
        if encode.first_slice == 0:
            assert key not in self._slices_done, f"image {key} is encoded twice"
            self._slices_done[key] = 0
            self._embeds[key] = image.num_embeds
            self._batches[key] = batch
            self.num_encodings[key] = self.num_encodings.get(key, 0) + 1
        assert self._slices_done[key] == encode.first_slice, f"image {key}: slices out of order"
        self._slices_done[key] += encode.num_slices
        assert self._slices_done[key] <= image.num_slices, f"image {key}: more slices than it has"
        if encode.is_last:
            self._slices_done[key] = -1
        assert sum(self._embeds.values()) <= self.limits.encoder_cache_embeds, "the encoder cache is overfull"

    def _check_slices(self, step: Step) -> None:
        keys = [image.key for encode in step.encodes for image in encode.images]
        assert len(set(keys)) == len(keys), "an image comes twice"
        if self.may_encode_at_will:
            return
        if step.num_decode_tokens:
            assert step.num_encoder_slices <= self.limits.max_encoder_slices_per_step, "encoder work holds up decodes"
        else:
            allowed = max(self.limits.max_encoder_slices_per_step, self.limits.idle_encoder_slices_per_step)
            assert step.num_encoder_slices <= allowed, "too many encoder slices"

    def _compute(self, step: Step, resident: set[str]) -> None:
        assert sum(chunk.num_tokens for chunk in step.chunks) <= self.limits.hard_num_batched_tokens, "memory overrun"
        assert len({chunk.request_id for chunk in step.chunks}) == len(step.chunks), "a request comes twice"
        assert len(step.chunks) <= self.limits.max_num_seqs, "too many sequences"
        written: set[int] = set()
        for chunk in step.chunks:
            self._check_chunk(chunk, resident)
            truth = self._known(chunk).with_guesses(chunk.drafts)
            for index in range(chunk.start, chunk.start + chunk.num_tokens):
                slot = self._slot(chunk, index)
                assert slot not in written, "two chunks write one slot"
                written.add(slot)
                self._kv[slot] = truth.cells[index]
            self.truths[chunk.request_id].num_computed = chunk.start + chunk.num_tokens - chunk.num_drafts
        for chunk in step.chunks:
            if self._is_lost(chunk):
                continue
            context = [self._kv.get(self._slot(chunk, i)) for i in range(chunk.start + chunk.num_tokens)]
            truth = self._known(chunk).with_guesses(chunk.drafts)
            assert context == truth.cells[: len(context)], f"{chunk.request_id} reads KV that is not its own"

    def _check_chunk(self, chunk: Chunk, resident: set[str]) -> None:
        known = self._known(chunk)
        truth, num_known = known.with_guesses(chunk.drafts), len(known.cells)
        prompt, end = truth.request.prompt, chunk.start + chunk.num_tokens
        assert truth.finish_reason is None, "a finished request is computed"
        assert chunk.num_tokens >= 1, "an empty chunk"
        assert len(set(chunk.block_ids)) == len(chunk.block_ids), "a block comes twice in one table"
        assert all(0 <= block_id < self.limits.num_blocks for block_id in chunk.block_ids), "no such block"
        token_ids = tuple(cell[0] for cell in truth.cells[chunk.start : end])
        if chunk.token_ids == (AWAITED_TOKEN_ID,):
            assert chunk.is_decode, "only a decode is made ahead of its token"
            assert len(known.outputs) < known.request.sampling.max_tokens, "ahead of an end that is known"
            assert num_known < self._context_len, "ahead of the end of the context"
        else:
            assert chunk.token_ids == token_ids, "wrong tokens"
        is_restart = chunk.start % self.limits.block_size == 0
        assert chunk.start == known.num_computed or is_restart, "computed again, or left out"
        assert chunk.samples == (end - chunk.num_drafts == num_known), "samples before the end, or not at it"
        assert chunk.sample_index == len(known.outputs), "wrong sample index"
        self._check_drafts(chunk, known)
        assert chunk.sampling == truth.request.sampling
        assert chunk.is_decode == (
            chunk.num_tokens - chunk.num_drafts == 1 and chunk.samples and bool(known.outputs)
        ), "not a decode"
        rows = [[*row, *range(len(row) + prompt.decode_delta, end + prompt.decode_delta)] for row in prompt.positions]
        assert [list(row) for row in chunk.positions] == [row[chunk.start : end] for row in rows], "wrong positions"
        filled: list[tuple[str | None, int]] = [(None, -1)] * chunk.num_tokens
        for embed in chunk.embeds:
            assert embed.key in resident, f"image {embed.key} is used before it is there"
            filled[embed.dest : embed.dest + embed.length] = [(embed.key, embed.row + i) for i in range(embed.length)]
        assert filled == [(cell[1], cell[2]) for cell in truth.cells[chunk.start : end]], "wrong image rows"
        for span in prompt.spans:
            inside = span.atomic and (span.start < chunk.start < span.end or span.start < end < span.end)
            assert not inside, "an atomic span is split"

    def _check_drafts(self, chunk: Chunk, known: Truth) -> None:
        assert chunk.num_drafts <= self.limits.num_speculative_tokens, "more guesses than allowed"
        if not chunk.num_drafts:
            return
        assert chunk.is_decode, "guesses behind a prompt"
        assert IMAGE_TOKEN not in chunk.drafts, "a placeholder is no guess"
        assert all(0 <= token_id < VOCAB_SIZE for token_id in chunk.drafts), "no such token"
        num_answered = len(known.outputs) + chunk.num_drafts
        assert num_answered < known.request.sampling.max_tokens, "guesses beyond max_tokens"
        assert len(known.cells) + chunk.num_drafts < self._context_len, "guesses beyond the context"

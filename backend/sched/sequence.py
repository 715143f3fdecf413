"""One request while it lives in the scheduler: its tokens, how far they are computed, and its state.

There are no phases. `computed` chases `total`, and prompt chunks, prefix hits, decodes and the way back from a
preemption are all that one subtraction. A sequence knows neither its neighbours nor the pool its blocks come from;
which moves of state are legal is written once, in `MOVES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from backend.sched.blocks import BlockKey, BlockTable
from backend.types.request import ImageInput, ImageSpan, PositionRows, Request, RequestClass
from backend.types.step import AWAITED_TOKEN_ID, Chunk, EmbedSlice

if TYPE_CHECKING:
    from backend.sched.speculator import Guesser

Priority = tuple[bool, int]
"""Smaller goes first: background after interactive, then by arrival."""


class SeqState(StrEnum):
    """Where a sequence is: in the queue (new or preempted), in the running set, or gone."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


MOVES: dict[SeqState, frozenset[SeqState]] = {
    SeqState.WAITING: frozenset({SeqState.RUNNING, SeqState.FINISHED}),
    SeqState.RUNNING: frozenset({SeqState.PREEMPTED, SeqState.FINISHED}),
    SeqState.PREEMPTED: frozenset({SeqState.RUNNING, SeqState.FINISHED}),
    SeqState.FINISHED: frozenset(),
}
"""The legal moves; every other one is a fault of the scheduler."""


class Sequence:
    """A request on its way: mutable, owned by the scheduler, read by policies.

    `arrival` orders sequences of one class. `prompt_len` counts the prompt's tokens, `computed` those whose KV is
    written or scheduled to be, guesses only once they came true; `num_cached` those of the prompt that were found
    computed when it was first admitted; `num_awaited` the tokens at its end that steps in flight are sampling, each of
    which has a placeholder among the others until the step's result is applied. `state_step` and `served_step` are the
    steps of the last move and of the last work done for it. `guesser` is the speculator's, from its first decode on.
    """

    def __init__(self, request: Request, *, arrival: int, step_id: int, table: BlockTable) -> None:
        self.request = request
        self.request_id = request.request_id
        self.prompt_len = len(request.prompt.token_ids)
        self.arrival = arrival
        self.table = table
        self.computed = 0
        self.num_cached = 0
        self.num_awaited = 0
        self.state = SeqState.WAITING
        self.state_step = step_id
        self.served_step = step_id
        self.is_promoted = False
        self.guesser: Guesser | None = None
        self.spans = tuple(sorted(request.prompt.spans, key=lambda span: span.start))
        self.images: dict[str, ImageInput] = {image.key: image for image in request.prompt.images}
        self._tokens = list(request.prompt.token_ids)
        self._keys: list[BlockKey] = []

    def __repr__(self) -> str:
        return f"Sequence({self.request_id!r}, {self.state}, {self.computed}/{self.total})"

    @property
    def total(self) -> int:
        """Tokens there are: prompt, outputs, and the placeholders of those being sampled."""
        return len(self._tokens)

    @property
    def remaining(self) -> int:
        """Tokens still to be computed."""
        return self.total - self.computed

    @property
    def num_outputs(self) -> int:
        """Tokens sampled so far, placeholders included."""
        return self.total - self.prompt_len

    @property
    def num_known(self) -> int:
        """Tokens there are without the placeholders."""
        return len(self._tokens) - self.num_awaited

    @property
    def awaits_token(self) -> bool:
        """Whether its newest token is still being sampled."""
        return self.num_awaited > 0

    @property
    def is_queued(self) -> bool:
        """Whether it holds no place among the running."""
        return self.state in (SeqState.WAITING, SeqState.PREEMPTED)

    @property
    def is_decoding(self) -> bool:
        """Whether only its newest output is left to compute."""
        # Not by way of the other properties: in each step it is asked of everyone who runs.
        return self.computed + 1 == len(self._tokens) > self.prompt_len

    @property
    def is_background(self) -> bool:
        """Whether it yields to interactive requests: background, and not yet aged."""
        return self.request.request_class is RequestClass.BACKGROUND and not self.is_promoted

    @property
    def priority(self) -> Priority:
        """Sort key, the most urgent first. Total: no two living sequences are equal."""
        return (self.is_background, self.arrival)

    def move_to(self, state: SeqState, step_id: int) -> None:
        """Change state; an illegal move raises AssertionError."""
        assert state in MOVES[self.state], f"{self.request_id}: illegal move {self.state} -> {state}"
        self.state = state
        self.state_step = step_id

    def known_tokens(self) -> list[int]:
        """A copy of its tokens; it must not await one."""
        assert not self.awaits_token, f"{self.request_id}: a token is being sampled"
        return list(self._tokens)

    def advance(self, end: int, step_id: int, drafts: tuple[int, ...] = ()) -> Chunk:
        """Schedule the tokens up to `end`, and guesses at what comes after: returns their chunk and moves `computed`.

        The block table must hold all of them already. A chunk that ends at `total` samples, and leaves a placeholder;
        only such a one may have guesses.
        """
        start, is_decode = self.computed, self.is_decoding
        assert not drafts or end == self.total, f"{self.request_id}: guesses before the end"
        chunk = Chunk(
            request_id=self.request_id,
            start=start,
            token_ids=(*self._tokens[start:end], *drafts),
            positions=self._positions(start, end + len(drafts)),
            block_ids=self.table.block_ids,
            embeds=tuple(self._embeds(start, end)) if self.spans else (),
            samples=end == self.total,
            sample_index=self.num_outputs,
            sampling=self.request.sampling,
            is_decode=is_decode,
            **self._past(start, samples=end == self.total),
            num_drafts=len(drafts),
        )
        self.computed = end
        self.served_step = step_id
        if chunk.samples:
            self._tokens.append(AWAITED_TOKEN_ID)
            self.num_awaited += 1
        return chunk

    def decode(self, step_id: int) -> Chunk:
        """What `advance` does for the one token that a decoding sequence has left, and no guesses.

        The same in fewer words: a step has one such chunk for each of its running answers.
        """
        start, request, tokens = self.computed, self.request, self._tokens
        prompt, sampling = request.prompt, request.sampling
        position = (start + prompt.decode_delta,)
        chunk = Chunk(
            self.request_id,
            start,
            (tokens[start],),
            (position,) * len(prompt.positions),
            self.table.block_ids,
            (),
            True,
            start + 1 - self.prompt_len,
            sampling,
            True,
        )
        if not sampling.is_plain:
            chunk = chunk._replace(**self._past(start, samples=True))
        self.computed = start + 1
        self.served_step = step_id
        tokens.append(AWAITED_TOKEN_ID)
        self.num_awaited += 1
        return chunk

    def take(self, token_ids: tuple[int, ...]) -> None:
        """Put sampled tokens where their placeholder, the first there is, stands; none leaves it there, at an end.

        All but the last were guessed, so their KV is there.
        """
        assert self.awaits_token, f"{self.request_id}: no token was being sampled"
        if token_ids:
            assert len(token_ids) == 1 or self.num_awaited == 1, f"{self.request_id}: guesses before a step made ahead"
            place = self.num_known
            self._tokens[place : place + 1] = token_ids
            self.num_awaited -= 1
            self.computed += len(token_ids) - 1
        if self.guesser:
            self.guesser.learn(token_ids)

    @property
    def tells_prompt(self) -> bool:
        """Whether the log-probabilities of its prompt are asked for, so that all of it must be computed."""
        return self.request.sampling.num_prompt_logprobs is not None

    def take_one(self, token_id: int) -> None:
        """`take` of one token."""
        self._tokens[-self.num_awaited] = token_id
        self.num_awaited -= 1
        if self.guesser:
            self.guesser.learn((token_id,))

    def rewind(self) -> None:
        """Give back all blocks and forget all KV; the tokens stay, so that they are computed again as they were."""
        assert not self.awaits_token, f"{self.request_id}: rewound while a token is being sampled"
        self.table.release()
        self.computed = 0

    def pending_spans(self) -> Iterator[ImageSpan]:
        """Spans not wholly computed, in order."""
        return (span for span in self.spans if span.end > self.computed)

    def pending_images(self) -> Iterator[ImageInput]:
        """Images that tokens still to be computed need, in order of need (a key may come twice)."""
        return (self.images[span.key] for span in self.pending_spans())

    def needs_image(self, key: str) -> bool:
        """Whether a token still to be computed needs image `key`."""
        return any(span.key == key for span in self.pending_spans())

    def block_keys(self, num_blocks: int) -> list[BlockKey]:
        """Content keys of its first `num_blocks` blocks, all of them full of known tokens."""
        size = self.table.block_size
        while len(self._keys) < num_blocks:
            start = len(self._keys) * size
            images = tuple(
                (span.start - start, span.length, span.key, span.offset)
                for span in self.spans
                if span.start < start + size and span.end > start
            )
            parent = self._keys[-1].digest if self._keys else b""
            self._keys.append(BlockKey(parent, tuple(self._tokens[start : start + size]), images))
        return self._keys[:num_blocks]

    def _past(self, start: int, *, samples: bool) -> dict[str, tuple[int, ...]]:
        """Prompt and outputs for a chunk whose token is chosen by them, or whose prompt is told of; else nothing."""
        sampling = self.request.sampling
        tells = sampling.num_prompt_logprobs is not None and start < self.prompt_len
        if not tells and (not samples or sampling.is_plain or not sampling.needs_history):
            return {}
        return {"prompt": self.request.prompt.token_ids, "history": tuple(self._tokens[self.prompt_len :])}

    def _positions(self, start: int, end: int) -> PositionRows:
        prompt = self.request.prompt
        if end <= self.prompt_len:
            return tuple(row[start:end] for row in prompt.positions)
        later = tuple(range(max(start, self.prompt_len) + prompt.decode_delta, end + prompt.decode_delta))
        if start >= self.prompt_len:
            return (later,) * len(prompt.positions)
        return tuple((*row[start:end], *later) for row in prompt.positions)

    def _embeds(self, start: int, end: int) -> Iterator[EmbedSlice]:
        for span in self.pending_spans():
            first, last = max(span.start, start), min(span.end, end)
            if first < last:
                yield EmbedSlice(span.key, span.offset + first - span.start, first - start, last - first, span.atomic)

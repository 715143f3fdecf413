"""The engine's frozen values: what the scheduler, the runner, the text layer and the server hand to one another.

Standard library only, so that every package may import it. Payloads that only one side understands (pixels) are opaque
`object`s here. Nothing in this module changes after construction; whatever changes lives with its owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

PositionRows = tuple[Sequence[int], ...]
"""Rotary positions of consecutive tokens: R rows of equal length (R = 1, or 3 for M-RoPE). Rows may be `range`s."""


class RequestClass(StrEnum):
    """Who waits for the answer. Interactive goes first; background ages upward so that it cannot starve."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"


class FinishReason(StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are the OpenAI API's words; the others never reach a reply as such."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Grammar(Protocol):
    """What an answer may be, compiled: opaque to all but the sampler, and one request's alone."""

    def mask(self, history: tuple[int, ...]) -> bytes:
        """The tokens that may follow the outputs `history`: a bit for each token id, the lowest first in each byte.

        Ids beyond the mask may not. A pure function of `history`, whatever was asked before; raises for a history that
        the grammar does not allow, and when a limit of its work is exceeded.
        """
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose each next token.

    `temperature` 0 is greedy. `top_p` 1 and `top_k` 0 are off. `seed` makes a request reproducible whatever its batch
    mates are; with None the request's id, which is fresh, takes its place. String stops belong to the text layer, which
    sees text; the engine knows `stop_token_ids` (the model's EOS ids are added by the text layer unless `ignore_eos`).

    `min_p` 0 is off: it drops tokens less likely than that share of the likeliest. `presence_penalty` is taken off the
    logit of every token of the output so far, `frequency_penalty` once for each time it came; `repetition_penalty` 1
    is off: it divides positive logits of tokens of prompt and output, and multiplies negative ones. `logit_bias` is
    added to the logits of these ids. `num_logprobs` asks for the log-probability of each token chosen and of that many
    likeliest ones (0: the chosen alone); `num_prompt_logprobs` asks the same of the prompt's own tokens, for which all
    of it is computed, whatever the prefix cache has. `grammar` says which tokens may come at all.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    grammar: Grammar | None = field(default=None, repr=False, compare=False)
    is_plain: bool = field(init=False, repr=False, compare=False)
    """Whether the model's logits are chosen from as they are. Worked out once: it is asked of every row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_plain", not (self.logit_bias or self.needs_history))

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on the tokens that came before, beyond what the model makes of them."""
        return (
            self.grammar is not None
            or self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one output token: its own, and (id, log-probability) of the likeliest, falling.

    They are the model's own, of all tokens that the grammar allows, before bias, penalties and temperature.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of a prompt's tokens from number `start` on, each given all those before it."""

    start: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class ImageInput:
    """One image of a request, ready to encode.

    `key` covers pixels and processing arguments, so equal keys mean equal embeddings. `num_embeds` counts rows the
    encoder will give; `num_slices` how many pieces `encode()` yields (vision blocks, times tiles). Images of one
    `layout` can be encoded together; an empty one means alone. `pixels` is the adapter's own payload and takes part in
    neither comparison nor repr.
    """

    key: str
    num_embeds: int
    num_slices: int
    pixels: object = field(repr=False, compare=False, default=None)
    layout: tuple[int, ...] = ()

    def is_alike(self, other: ImageInput) -> bool:
        """Whether the two can be encoded together."""
        shape = (self.layout, self.num_embeds, self.num_slices)
        return bool(self.layout) and shape == (other.layout, other.num_embeds, other.num_slices)


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Placeholders `[start, start + length)` of a prompt, filled from rows `[offset, offset + length)` of image `key`.

    A tiled image has one span per run of placeholders, all with the same key. `atomic` spans may not be split between
    two chunks (families whose image tokens attend to each other in both directions).
    """

    start: int
    length: int
    key: str
    offset: int = 0
    atomic: bool = False

    @property
    def end(self) -> int:
        """Index one past the last placeholder."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a model adapter makes of messages and images.

    `positions` covers the prompt, R rows of `len(token_ids)`. A later token at index i has position
    `i + decode_delta` on every row (M-RoPE runs behind the index after an image; 0 otherwise).
    """

    token_ids: tuple[int, ...]
    images: tuple[ImageInput, ...]
    spans: tuple[ImageSpan, ...]
    positions: PositionRows
    decode_delta: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, complete: everything the engine needs to know about it, decided before it is submitted.

    `num_places` is how many places the queue must have for it to be let in: one, more where others follow it, none for
    those that do.
    """

    request_id: str
    prompt: Prepared
    sampling: SamplingParams
    request_class: RequestClass = RequestClass.INTERACTIVE
    num_places: int = 1


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


AWAITED_TOKEN_ID = -1
"""Stands in a chunk for the token that the step before it samples for the same request, and nobody knows yet."""


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


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a Step: new tokens by request, and requests or images whose computation failed, with the reason.

    `sampled` has, for each chunk that samples and did not fail, its guesses up to the first that is wrong, and the
    token that comes after those; `logprobs` is aligned with it, for the requests that ask for them. `prompt_logprobs`
    are of the prompt tokens that a chunk leads to.
    """

    step_id: int
    sampled: dict[str, tuple[int, ...]]
    failed_requests: dict[str, str] = field(default_factory=dict)
    failed_images: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[str, PromptLogprobs] = field(default_factory=dict)

    @property
    def num_accepted_tokens(self) -> int:
        """Guesses that came true: tokens beyond the one of each sampling chunk."""
        return sum(len(token_ids) - 1 for token_ids in self.sampled.values())


class TokenEvent(NamedTuple):
    """The scheduler's word on one request after a step: a token, an end, or both (the last token and its reason).

    A step that gave a request several tokens has one event for each, in order.
    `error` explains `FinishReason.ERROR`. A stop token id is reported as `token_id=None` with reason `STOP`.
    `num_cached_tokens` comes with the first event of an answer: how much of the prompt the prefix cache had.
    `prompt_logprobs` come in events of their own, without a token, and again where a prompt is computed again.
    """

    request_id: str
    token_id: int | None
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: TokenLogprobs | None = None
    num_cached_tokens: int | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The scheduler's bounds, all decided before it starts.

    `max_num_batched_tokens` is the policy's soft token budget per step (it may be changed while running);
    `hard_num_batched_tokens` the activation memory's bound, which an atomic image may reach and nothing may exceed.
    Encoder capacity is counted in embeddings, encoder work per step in slices: `max_encoder_slices_per_step` while
    somebody decodes, `idle_encoder_slices_per_step` while nobody does. `background_aging_steps` is how many steps a
    waiting background request needs to count as interactive. `num_speculative_tokens` is how many tokens of a running
    answer may be guessed in a step; 0 is none. `is_token_budget_exact` is false where nobody chose the token budget: a
    policy may then give prompts less by what tokens cost. `max_encoder_batch` images may be encoded as one batch, where
    that pays.
    """

    max_num_batched_tokens: int
    hard_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    num_blocks: int
    block_size: int = 16
    encoder_cache_embeds: int = 16384
    max_encoder_slices_per_step: int = 1
    idle_encoder_slices_per_step: int = 4
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024
    background_aging_steps: int = 256
    num_speculative_tokens: int = 0
    is_token_budget_exact: bool = True
    max_encoder_batch: int = 1


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A reading of the scheduler at one moment; counters (`num_*_total`) only grow.

    `step_token_budget` is what the policy allowed the latest step, decodes included.
    """

    num_running: int
    num_waiting: int
    num_blocks_used: int
    num_blocks_total: int
    encoder_embeds_used: int
    encoder_embeds_total: int
    num_preemptions_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    step_token_budget: int = 0

"""A request as a value: what is asked, how to choose its tokens, and its prompt with images and positions.

Payloads that only one side understands (pixels, a grammar) are opaque here. Standard library only, as everything in
this package, so that every other may import it; nothing changes after construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

PositionRows = tuple[Sequence[int], ...]
"""Rotary positions of consecutive tokens: R rows of equal length (R = 1, or 3 for M-RoPE). Rows may be `range`s."""


class RequestClass(StrEnum):
    """Who waits for the answer. Interactive goes first; background ages upward so that it cannot starve."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"


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

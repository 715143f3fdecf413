"""What came of a step, for the scheduler, and what the scheduler tells of it to those who wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are the OpenAI API's words; the others never reach a reply as such."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


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

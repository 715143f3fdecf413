"""From what a client wishes to how the engine samples: defaults filled in, what cannot be refused by name.

Knows nothing of text, images or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from backend.conversation import SamplingDefaults, SamplingWish
from backend.errors import Rejected
from backend.models.adapter import ModelSpec
from backend.types.request import Grammar, Prepared, SamplingParams

T = TypeVar("T")


def check_wish(wish: SamplingWish, spec: ModelSpec) -> None:
    """Raise Rejected for a wish that no prompt could make possible."""
    for token_id, _ in wish.logit_bias:
        if not 0 <= token_id < spec.vocab_size:
            raise Rejected(
                f"logit_bias names token {token_id}; this model's ids are 0 to {spec.vocab_size - 1}",
                param="logit_bias",
                code="invalid_value",
            )
    if wish.ignore_eos and wish.constraint:
        raise Rejected(
            f"ignore_eos cannot be combined with {wish.constraint.param}: an answer that fits ends",
            param="ignore_eos",
            code="invalid_value",
        )


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """One model's: its defaults, and how long its context is here."""

    spec: ModelSpec
    defaults: SamplingDefaults
    max_model_len: int

    def params(self, prompt: Prepared, wish: SamplingWish, grammar: Grammar | None, param: str) -> SamplingParams:
        """How an answer to `prompt` is sampled; raises Rejected, naming `param`, where both do not fit the context."""
        num_prompt, limit, defaults = len(prompt.token_ids), self.max_model_len, self.defaults
        if num_prompt >= limit:
            raise Rejected(
                f"the context is {limit} tokens long, and the {param} alone has {num_prompt}: shorten them",
                param=param,
                code="context_length_exceeded",
            )
        if wish.max_tokens is not None and num_prompt + wish.max_tokens > limit:
            raise Rejected(
                f"the context is {limit} tokens long, and {num_prompt + wish.max_tokens} were asked for "
                f"({num_prompt} in the {param}, {wish.max_tokens} in the answer): shorten either",
                param=param,
                code="context_length_exceeded",
            )
        return SamplingParams(
            max_tokens=wish.max_tokens or min(limit - num_prompt, defaults.max_tokens or limit),
            temperature=_or(wish.temperature, defaults.temperature),
            top_p=_or(wish.top_p, defaults.top_p),
            top_k=_or(wish.top_k, defaults.top_k),
            seed=wish.seed,
            stop_token_ids=frozenset() if wish.ignore_eos else self.spec.eos_token_ids,
            stop=wish.stop,
            ignore_eos=wish.ignore_eos,
            min_p=_or(wish.min_p, defaults.min_p),
            presence_penalty=wish.presence_penalty,
            frequency_penalty=wish.frequency_penalty,
            repetition_penalty=_or(wish.repetition_penalty, defaults.repetition_penalty),
            logit_bias=wish.logit_bias,
            num_logprobs=wish.num_logprobs,
            num_prompt_logprobs=wish.num_prompt_logprobs,
            grammar=grammar,
        )


def _or(wished: T | None, default: T) -> T:
    return default if wished is None else wished

"""The fields that say how tokens are chosen, the same for chat and text completions, and what the engine makes of them.

Names, meanings and bounds are the OpenAI API's; `top_k`, `min_p`, `repetition_penalty`, `ignore_eos` and
`structured_outputs` are vLLM's. Knows no endpoint.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from backend.choices import MAX_CHOICES
from backend.conversation import Constraint, SamplingWish
from backend.errors import Rejected
from backend.server.fields import Body
from backend.server.intake import stops_of
from backend.server.structured import StructuredOutputs

MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024

Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class DrawFields(Body):
    """Part of a request body. None leaves a field to the model's or the API's default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None


class SamplingFields(DrawFields):
    """What chat and text completions have beside."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


def wish_of(
    fields: DrawFields,
    *,
    max_tokens: int | None = None,
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    constraint: Constraint | None = None,
) -> SamplingWish:
    """What `fields` ask for; the rest comes from fields of the endpoint's own.

    Raises Rejected, naming the field, for what no field can say by itself.
    """
    demanded = fields.structured_outputs.constraint() if fields.structured_outputs else None
    if demanded and constraint:
        raise Rejected(
            f"structured_outputs and {constraint.param} both say what the answer must be: send one",
            param="structured_outputs",
            code="invalid_value",
        )
    return SamplingWish(
        max_tokens=max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=None if fields.top_k is None else max(0, fields.top_k),
        seed=fields.seed,
        stop=stops_of(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        min_p=fields.min_p,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=_biases(fields.logit_bias or {}),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        constraint=demanded or constraint,
    )


def _biases(logit_bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(logit_bias) > MAX_BIASES:
        raise Rejected(
            f"logit_bias holds {len(logit_bias)} tokens; at most {MAX_BIASES} are taken",
            param="logit_bias",
            code="invalid_value",
        )
    for name in logit_bias:
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise Rejected(
                f"logit_bias has the key {name[:20]!r}; keys are token ids", param="logit_bias", code="invalid_value"
            )
    by_id = {int(name): bias for name, bias in logit_bias.items()}
    return tuple(sorted((token_id, bias) for token_id, bias in by_id.items() if bias))

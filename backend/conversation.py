"""What a client says and how it wants to be answered, before any of it is read: values between server and builder.

Knows nothing of HTTP or of the OpenAI API's field names beyond the `param` paths it is handed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from backend.models.adapter import Message


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image as it came in: a URI, and the path of the request's part that holds it. `payload` holds the bytes of one
    that was fetched."""

    uri: str = field(repr=False)
    param: str
    payload: bytes | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in HF's chat format, with the images they refer to in order of appearance. Never printed.

    `param` is the request's field that holds them. `tools` are functions in HF's form, which is the OpenAI API's.
    """

    messages: Sequence[Message] = field(repr=False)
    images: Sequence[ImagePart] = ()
    param: str = "messages"
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds where a request says nothing: the OpenAI API's defaults, unless the model brings its own.

    `max_tokens` None: whatever the context has room for.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must be, as it came in, and the path of the field that says so.

    `text` is a JSON schema (`json_schema`), a regular expression (`regex`), a JSON list of strings (`choice`), or a
    grammar (`grammar`: EBNF or Lark; `lark`: Lark). `whitespace` is a regular expression for what may stand between the
    parts of JSON; None takes a bounded run of blanks and line breaks, empty text allows none.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "lark"]
    text: str = field(repr=False)
    param: str
    whitespace: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """How a client wants its tokens chosen; None takes the default (`max_tokens`: all that is left of the context)."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    constraint: Constraint | None = None

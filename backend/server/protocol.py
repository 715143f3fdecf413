"""What a chat request may say, field by field, and how everything else is answered.

A field we accept, we honour. A known field of the OpenAI API that we do not support is refused by name, unless it has
the value that changes nothing. Anything else is accepted, and logged once by name. Replies are built elsewhere, from
`openai.types`.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.errors import Rejected

log = logging.getLogger("watchword.server")

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "n": (None, 1),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Known fields that we do not support, with the values that change nothing."""

_LABELS = frozenset(
    {
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Known fields that ask nothing of this server: who is calling, hints to a cache that works without them, and how tools
would be called if there were any."""

_UNSUPPORTED_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}
"""The same for one message; a reply that a client sends back as it came carries most of them as null."""

_MAX_UNKNOWN_NAMES = 100
"""So many names are logged; a client that makes up new ones fills neither memory nor log."""

_MAX_FAULT_LEN = 200
"""A fault may quote a wrong tag; it is not to carry a payload back."""

_unknown_seen: set[str] = set()


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)


class TextPart(_Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageUrl(_Body):
    """Where an image is. `detail` is taken as the hint it is: the model's processor knows one way to see."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImageUrlPart(_Body):
    """An image, as a data: URI."""

    type: Literal["image_url"]
    image_url: ImageUrl


ContentPart = Annotated[TextPart | ImageUrlPart, Field(discriminator="type")]


class ChatMessage(_Body):
    """One message. Only a user's may hold images; only the assistant's may be empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None


class StreamOptions(_Body):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(_Body):
    """Body of `POST /v1/chat/completions`. `top_k` and `ignore_eos` are vLLM's additions to the OpenAI API."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read a request body; raises Rejected, naming the field but never its contents."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    _check_extra(request, _UNSUPPORTED, "")
    for i, message in enumerate(request.messages):
        _check_extra(message, _UNSUPPORTED_IN_MESSAGE, f"messages[{i}].")
    if request.stream_options is not None and not request.stream:
        raise Rejected("stream_options is only allowed with stream: true", param="stream_options")
    return request


def _check_extra(body: _Body, unsupported: dict[str, tuple[Any, ...]], prefix: str) -> None:
    for name, value in (body.model_extra or {}).items():
        if name in unsupported:
            if value not in unsupported[name]:
                raise Rejected(f"{prefix}{name} is not supported", param=prefix + name, code="unsupported_parameter")
        elif name not in _LABELS and name not in _unknown_seen and len(_unknown_seen) < _MAX_UNKNOWN_NAMES:
            _unknown_seen.add(name)
            log.warning("requests carry an unknown field, which is ignored: %.64r", name)


def _refusal(error: ValidationError) -> Rejected:
    """The deepest fault in words (a union reports one per member), with the field's path as the API writes it."""
    fault = max(error.errors(include_input=False, include_url=False), key=lambda fault: len(fault["loc"]))
    if fault["type"] == "json_invalid":
        return Rejected(f"the request body is not valid JSON: {fault.get('ctx', {}).get('error')}", code="invalid_json")
    param = _field_path(fault["loc"])
    return Rejected(
        f"{param or 'the request body'}: {fault['msg'][:_MAX_FAULT_LEN]}", param=param or None, code="invalid_value"
    )


def _field_path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content[1].text` for pydantic's location, which also names union members (`list[…]`, `str`) and,
    behind an index into such a list, the tag of the part."""
    path, in_union, after_index = "", False, False
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "str" or "[" in step:
            in_union = True
        elif not (in_union and after_index):
            path += f".{step}" if path else step
        after_index = isinstance(step, int)
    return path

"""What a chat request may say, field by field, by the rules of `backend.server.fields`.

Replies are built elsewhere, from `openai.types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from backend.errors import Rejected
from backend.server.fields import Body, check_extra, parse_body
from backend.server.sampling import MAX_TOP_LOGPROBS, SamplingFields
from backend.server.structured import ResponseFormat
from backend.server.tools import Tool, ToolChoice

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    # vLLM's own.
    "add_generation_prompt": (None, True),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "echo": (None, False),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_stop_str_in_output": (None, False),
    "length_penalty": (None, 1),
    "logits_processors": (None, []),
    "min_tokens": (None, 0),
    "mm_processor_kwargs": (None, {}),
    "prompt_logprobs": (None,),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "stop_token_ids": (None, []),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}
"""Known fields that we do not support, with the values that change nothing."""

LABELS = frozenset(
    {
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Known fields that ask nothing of this server: who is calling, and hints to a cache that works without them."""

_UNSUPPORTED_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
}
"""The same for one message; a reply that a client sends back as it came carries most of them as null."""


class TextPart(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """Where an image is. `detail` is taken as the hint it is: the model's processor knows one way to see."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImageUrlPart(Body):
    """An image, as a data: URI."""

    type: Literal["image_url"]
    image_url: ImageUrl


ContentPart = Annotated[TextPart | ImageUrlPart, Field(discriminator="type")]


class FunctionCall(Body):
    """A call that the assistant made: `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Body):
    """One call, and the id that its result names."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """One message. Only a user's may hold images; only the assistant's may be empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(Body):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(SamplingFields):
    """Body of `POST /v1/chat/completions`."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read a request body; raises Rejected, naming the field but never its contents."""
    request = parse_body(ChatRequest, body)
    check_extra(request, UNSUPPORTED, "", labels=LABELS)
    check_messages(request.messages)
    if request.stream_options is not None and not request.stream:
        raise Rejected("stream_options is only allowed with stream: true", param="stream_options")
    return request


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Refuse, by name, known fields of a message that we do not support."""
    for i, message in enumerate(messages):
        check_extra(message, _UNSUPPORTED_IN_MESSAGE, f"messages[{i}].", labels=LABELS)

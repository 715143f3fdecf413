"""What a `/v1/completions`, `/tokenize` or `/detokenize` request may say, by the rules of `backend.server.fields`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from backend.errors import Rejected
from backend.server.fields import Body, check_extra, parse_body
from backend.server.protocol import ChatMessage, StreamOptions, check_messages
from backend.server.sampling import MAX_TOP_LOGPROBS, SamplingFields

MAX_PROMPTS = 128

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "prompt_logprobs": (None,),
    "suffix": (None, ""),
}
"""Known fields that we do not support, with the values that change nothing."""

_LABELS = frozenset({"user"})

_UNSUPPORTED_TO_TOKENIZE: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (None, False),
    "mm_processor_kwargs": (None,),
    "tools": (None, []),
}


class CompletionRequest(SamplingFields):
    """Body of `POST /v1/completions`: one prompt or several, as text or as token ids."""

    model: str
    prompt: (
        str
        | Annotated[list[int], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[list[int]], Field(min_length=1)]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TokenizeRequest(Body):
    """Body of `POST /tokenize`: a text as it is, or messages as a chat would have them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[int]


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Read a request body; raises Rejected, naming the field but never its contents."""
    request = parse_body(CompletionRequest, body)
    check_extra(request, _UNSUPPORTED, "", labels=_LABELS)
    if request.stream_options is not None and not request.stream:
        raise Rejected("stream_options is only allowed with stream: true", param="stream_options")
    if request.max_tokens == 0 and not request.echo:
        raise Rejected("max_tokens 0 is only allowed with echo: true", param="max_tokens", code="invalid_value")
    if (num_prompts := len(prompts_of(request))) > MAX_PROMPTS:
        raise Rejected(
            f"prompt holds {num_prompts} prompts; at most {MAX_PROMPTS} are taken", param="prompt", code="invalid_value"
        )
    return request


def prompts_of(request: CompletionRequest) -> list[tuple[str, str | list[int]]]:
    """The prompts, each with its path in the request."""
    match request.prompt:
        case str():
            return [("prompt", request.prompt)]
        case [int(), *_]:
            return [("prompt", [token for token in request.prompt if isinstance(token, int)])]
    return [(f"prompt[{i}]", prompt) for i, prompt in enumerate(request.prompt) if not isinstance(prompt, int)]


def parse_tokenize_request(body: bytes) -> TokenizeRequest:
    """Read a request body; raises Rejected unless it holds either `prompt` or `messages`."""
    request = parse_body(TokenizeRequest, body)
    check_extra(request, _UNSUPPORTED_TO_TOKENIZE, "")
    if (request.prompt is None) is (request.messages is None):
        raise Rejected("send either prompt or messages", param="prompt", code="invalid_value")
    if request.messages is not None:
        check_messages(request.messages)
        if request.add_special_tokens:
            raise Rejected(
                "add_special_tokens is for prompt: the chat template brings its own", param="add_special_tokens"
            )
    return request


def parse_detokenize_request(body: bytes) -> DetokenizeRequest:
    """Read a request body; raises Rejected, naming the field."""
    request = parse_body(DetokenizeRequest, body)
    check_extra(request, {}, "")
    return request

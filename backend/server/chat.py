"""`POST /v1/chat/completions`: from a request body to an Answer.

Everything that can be refused is refused before the first header is sent. Whoever goes away takes their request with
them: every path out of here closes the reply, which cancels it in the engine unless it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from backend.choices import Choices, requests_for
from backend.conversation import Conversation, ImagePart, SamplingWish
from backend.errors import Rejected
from backend.server.errors import CLIENT_GONE
from backend.server.event_stream import EventStream
from backend.server.intake import before_disconnect, check_model, class_of, done, read_body
from backend.server.protocol import ChatMessage, ChatRequest, TextPart, parse_chat_request
from backend.server.reply import Reply
from backend.server.sampling import wish_of as sampling_wish
from backend.server.structured import format_constraint
from backend.service import Service


async def create_chat_completion(http: Request, service: Service) -> Response:
    """Answer one request, streamed or whole."""
    chat = parse_chat_request(await read_body(http, service.config.max_request_bytes))
    check_model(service, chat.model)
    building = service.builder.build(conversation_of(chat.messages), wish_of(chat), class_of(http))
    request = await before_disconnect(http, building)
    if request is None:
        return Response(status_code=CLIENT_GONE)
    choices = Choices(service.engine, requests_for(request, chat.n or 1), service.tokenizer)
    reply = Reply(service.model_name, choices, service.builder.vocabulary)
    try:
        if chat.stream:
            if await before_disconnect(http, done(choices.admitted())):
                include_usage = bool(chat.stream_options and chat.stream_options.include_usage)
                return EventStream(reply.events(include_usage=include_usage), reply.close)
        elif await before_disconnect(http, done(reply.collect())):
            reply.close()
            return Response(reply.whole(), media_type="application/json")
    except BaseException as error:
        reply.close(type(error).__name__)
        raise
    reply.close("client gone")
    return Response(status_code=CLIENT_GONE)


def wish_of(chat: ChatRequest) -> SamplingWish:
    """The request's sampling fields."""
    if None not in (chat.max_tokens, chat.max_completion_tokens) and chat.max_tokens != chat.max_completion_tokens:
        raise Rejected("max_tokens and max_completion_tokens differ: send one", param="max_tokens")
    if chat.top_logprobs and not chat.logprobs:
        raise Rejected("top_logprobs is only allowed with logprobs: true", param="top_logprobs", code="invalid_value")
    return sampling_wish(
        chat,
        max_tokens=chat.max_completion_tokens or chat.max_tokens,
        num_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        constraint=format_constraint(chat.response_format),
    )


def conversation_of(said: Sequence[ChatMessage]) -> Conversation:
    """Messages in HF's format, images apart."""
    messages: list[dict[str, Any]] = []
    images: list[ImagePart] = []
    for i, message in enumerate(said):
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": _content(message, f"messages[{i}].content", images)})
    return Conversation(messages, images)


def _content(message: ChatMessage, param: str, images: list[ImagePart]) -> str | list[dict[str, str]]:
    """Plain text where the message is only text, HF parts where it holds images, which are added to `images`."""
    content = message.content
    if content is None or content == []:
        if message.role != "assistant":
            raise Rejected(f"{param} is missing", param=param, code="invalid_value")
        return ""
    if isinstance(content, str):
        return content
    parts: list[dict[str, str]] = []
    for j, part in enumerate(content):
        if isinstance(part, TextPart):
            parts.append({"type": "text", "text": part.text})
            continue
        if message.role != "user":
            raise Rejected(f"{param}[{j}]: only user messages may hold images", param=f"{param}[{j}]")
        images.append(ImagePart(part.image_url.url, f"{param}[{j}].image_url"))
        parts.append({"type": "image"})
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts

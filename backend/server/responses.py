"""`POST /v1/responses`: from a request body to an Answer, by the rules of `backend.server.chat`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from backend.conversation import Conversation, ImagePart, SamplingWish
from backend.errors import Rejected
from backend.server.errors import CLIENT_GONE
from backend.server.intake import before_disconnect, check_model, class_of, read_body
from backend.server.response_reply import ResponseReply
from backend.server.responses_protocol import (
    InputImage,
    InputMessage,
    OutputText,
    ResponsesRequest,
    parse_responses_request,
)
from backend.server.sampling import wish_of
from backend.server.sending import send
from backend.service import Service
from backend.text import Answer

ID_PREFIX = "resp_"


async def create_response(http: Request, service: Service) -> Response:
    """Answer one request, streamed or whole."""
    asked = parse_responses_request(await read_body(http, service.config.max_request_bytes))
    check_model(service, asked.model)
    building = service.builder.build(conversation_of(asked), _wish_of(asked), class_of(http), id_prefix=ID_PREFIX)
    request = await before_disconnect(http, building)
    if request is None:
        return Response(status_code=CLIENT_GONE)
    reply = ResponseReply(asked, service.model_name, Answer(service.engine, request, service.tokenizer))
    return await send(http, reply, reply.events if asked.stream else None)


def _wish_of(asked: ResponsesRequest) -> SamplingWish:
    form = asked.text.format if asked.text else None
    return wish_of(asked, max_tokens=asked.max_output_tokens, constraint=form.constraint() if form else None)


def conversation_of(asked: ResponsesRequest) -> Conversation:
    """Messages in HF's format, the instructions first, images apart."""
    messages: list[dict[str, Any]] = []
    images: list[ImagePart] = []
    if asked.instructions:
        messages.append({"role": "system", "content": asked.instructions})
    for i, message in enumerate(asked.input):
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": _content(message, f"input[{i}].content", images)})
    return Conversation(messages, images, param="input")


def _content(message: InputMessage, param: str, images: list[ImagePart]) -> str | list[dict[str, str]]:
    """Plain text where the message is only text, HF parts where it holds images, which are added to `images`."""
    if isinstance(message.content, str):
        return message.content
    if not message.content and message.role != "assistant":
        raise Rejected(f"{param} is empty", param=param, code="invalid_value")
    parts: list[dict[str, str]] = []
    for j, part in enumerate(message.content):
        where = f"{param}[{j}]"
        if isinstance(part, InputImage):
            if message.role != "user":
                raise Rejected(f"{where}: only user messages may hold images", param=where, code="invalid_value")
            images.append(ImagePart(part.image_url, f"{where}.image_url"))
            parts.append({"type": "image"})
            continue
        if isinstance(part, OutputText) and message.role != "assistant":
            raise Rejected(f"{where}: output_text is the assistant's", param=where, code="invalid_value")
        parts.append({"type": "text", "text": part.text})
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts

"""The messages of a chat request, images and tool calls included, in the form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backend.conversation import Conversation, ImagePart
from backend.errors import Rejected
from backend.server.depth import check_depth
from backend.server.protocol import ChatMessage, TextPart, ToolCall


def conversation_of(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> Conversation:
    """Messages in HF's format, images apart; raises Rejected, naming the part."""
    told: list[dict[str, Any]] = []
    images: list[ImagePart] = []
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": _content(message, f"{where}.content", images)}
        if message.tool_calls:
            one["tool_calls"] = _calls(message, f"{where}.tool_calls")
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.role == "tool":
            one |= _answered(message, f"{where}.tool_call_id", names)
        elif message.tool_call_id is not None:
            raise Rejected(
                f"{where}.tool_call_id: only tool messages have one",
                param=f"{where}.tool_call_id",
                code="invalid_value",
            )
        told.append(one)
    return Conversation(told, images, tools=tools)


def has_calls(messages: Sequence[ChatMessage]) -> str | None:
    """The path of the first message that calls a tool or brings its result; None if none does."""
    places = (i for i, message in enumerate(messages) if message.tool_calls or message.role == "tool")
    return next((f"messages[{i}]" for i in places), None)


def _answered(message: ChatMessage, param: str, names: Mapping[str, str]) -> dict[str, str]:
    """Which call a result belongs to."""
    if message.tool_call_id is None:
        raise Rejected(f"{param} is missing", param=param, code="invalid_value")
    name = names.get(message.tool_call_id)
    return {"tool_call_id": message.tool_call_id} | ({"name": name} if name is not None else {})


def _calls(message: ChatMessage, param: str) -> list[dict[str, Any]]:
    if message.role != "assistant":
        raise Rejected(f"{param}: only the assistant calls tools", param=param, code="invalid_value")
    return [_call(call, f"{param}[{j}].function.arguments") for j, call in enumerate(message.tool_calls or [])]


def _call(call: ToolCall, param: str) -> dict[str, Any]:
    arguments = arguments_of(call.function.arguments, param)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def arguments_of(text: str, param: str) -> dict[str, Any]:
    """A call's arguments as templates want them, as an object; raises Rejected, naming `param`, for what is none."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise Rejected(f"{param} is not a JSON object", param=param, code="invalid_value")
    check_depth(arguments, param)
    return arguments


def _content(message: ChatMessage, param: str, images: list[ImagePart]) -> str | list[dict[str, str]]:
    """Plain text where the message is only text, HF parts where it holds images, which are added to `images`."""
    content = message.content
    if content is None or content == []:
        if message.role not in ("assistant", "tool"):
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

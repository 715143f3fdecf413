"""The input of a `/v1/responses` request in the form that chat templates take: instructions first, images apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.conversation import Conversation, ImagePart
from backend.errors import Rejected
from backend.server.chat_messages import arguments_of
from backend.server.responses_items import InputCall, InputCallOutput, InputImage, InputItem, InputMessage, OutputText


def conversation_of(
    items: Sequence[InputItem], instructions: str | None, tools: Sequence[Mapping[str, Any]] = ()
) -> Conversation:
    """Messages in HF's format; raises Rejected, naming the part.

    Calls that follow one another, or what the assistant said before them, are one message, as templates want it.
    """
    told: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    images: list[ImagePart] = []
    names: dict[str, str] = {}
    for i, item in enumerate(items):
        where = f"input[{i}]"
        match item:
            case InputMessage():
                role = "system" if item.role == "developer" else item.role
                told.append({"role": role, "content": _content(item, f"{where}.content", images)})
            case InputCall():
                if not told or told[-1]["role"] != "assistant":
                    told.append({"role": "assistant", "content": ""})
                told[-1].setdefault("tool_calls", []).append(_call(item, f"{where}.arguments"))
                names[item.call_id] = item.name
            case InputCallOutput():
                told.append({"role": "tool", "content": _output(item)} | _answered(item, names))
    return Conversation(told, images, param="input", tools=tools)


def has_calls(items: Sequence[InputItem]) -> str | None:
    """The path of the first item that is a call or its result; None if none is."""
    places = (i for i, item in enumerate(items) if not isinstance(item, InputMessage))
    return next((f"input[{i}]" for i in places), None)


def _call(item: InputCall, param: str) -> dict[str, Any]:
    arguments = arguments_of(item.arguments, param)
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}


def _answered(item: InputCallOutput, names: Mapping[str, str]) -> dict[str, str]:
    """Which call a result belongs to."""
    name = names.get(item.call_id)
    return {"tool_call_id": item.call_id} | ({"name": name} if name is not None else {})


def _output(item: InputCallOutput) -> str:
    return item.output if isinstance(item.output, str) else "\n".join(part.text for part in item.output)


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

"""Messages -> prompt text, by the checkpoint's own chat template.

Templates disagree on the form of `content`: those of text models want a string, those of vision-language models a list
of parts. Messages come in either form; here they are given the one the template was written for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backend.errors import Rejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from backend.models.adapter import Message


def render(
    tokenizer: PreTrainedTokenizerBase,
    template: Any,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt up to where the assistant's answer begins. Raises `Rejected` with the template's own objection."""
    if not messages:
        raise Rejected("messages is empty", param="messages")
    if not template:
        raise Rejected(
            "this model has no chat template: its checkpoint is not made for chat",
            param="model",
            code="no_chat_template",
        )
    try:
        prompt = tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=_one_of(template, has_tools=bool(tools)),
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception as error:  # a template checks its messages by raising; one without checks fails on the unexpected
        raise Rejected(f"the model's chat template refuses these messages: {error}", param="messages") from error
    assert isinstance(prompt, str)
    return prompt


def _one_of(template: Any, *, has_tools: bool) -> Any:
    """The template for this use, where a checkpoint has several by name."""
    if isinstance(template, dict):
        return template.get("tool_use" if has_tools else "default") or template.get("default")
    return template


def as_text(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages whose content is a string, for text models. Raises `Rejected` for any part that is not text."""
    return [{**m, "content": _joined(m["content"])} if m.get("content") is not None else dict(m) for m in messages]


def as_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages whose content is a list of parts, for vision-language models."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else dict(m)
        for m in messages
    ]


def texts_of(messages: Sequence[Message]) -> list[str]:
    """Every text that a user of the API wrote into the messages."""
    parts = [part for m in as_parts(messages) for part in m.get("content") or []]
    calls = [text for m in messages for text in leaves(m.get("tool_calls") or ())]
    return [part["text"] for part in parts if part["type"] == "text"] + calls


def leaves(value: Any) -> list[str]:
    """Every text in JSON, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    return [text for item in value for text in leaves(item)] if isinstance(value, list | tuple) else []


def num_image_parts(messages: Sequence[Message]) -> int:
    """How many images the messages refer to."""
    return sum(part["type"] == "image" for m in as_parts(messages) for part in m.get("content") or [])


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if part["type"] != "text":
            raise Rejected(f"this model takes text only, not {part['type']} parts", param="messages")
    return "\n".join(part["text"] for part in content)

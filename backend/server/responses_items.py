"""The items of a `/v1/responses` request's input: messages, calls that the model made, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from backend.server.fields import Body, check_extra

_LABELS_OF_ITEM = frozenset({"caller", "id", "name", "phase", "status"})
"""What an item carries that came from a reply and is sent back."""

_UNSUPPORTED_IN_ITEM: dict[str, tuple[Any, ...]] = {"async": (None, False), "namespace": (None,)}

_LABELS_OF_PART = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})

_UNSUPPORTED_IN_PART: dict[str, tuple[Any, ...]] = {"file_id": (None,)}


class InputText(Body):
    """A piece of text from the client."""

    type: Literal["input_text"]
    text: str


class InputImage(Body):
    """An image, as a data: URI. `detail` is taken as the hint it is: the model's processor knows one way to see."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class OutputText(Body):
    """A piece of text that the model said earlier."""

    type: Literal["output_text"]
    text: str


InputPart = Annotated[InputText | InputImage | OutputText, Field(discriminator="type")]


class InputMessage(Body):
    """One message. Only a user's may hold images, only the assistant's `output_text`."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputPart]


class InputCall(Body):
    """A call that the assistant made: `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(Body):
    """What came of a call: text."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]


def _kind_of(item: Any) -> str:
    """The tag of an item; one without a type is a message."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return f"item[{kind}]"


InputItem = Annotated[
    # Brackets in a tag keep it out of a fault's field path.
    Annotated[InputMessage, Tag("item[message]")]
    | Annotated[InputCall, Tag("item[function_call]")]
    | Annotated[InputCallOutput, Tag("item[function_call_output]")],
    Discriminator(
        _kind_of,
        custom_error_type="unknown_item",
        custom_error_message="an item is a message, a function_call or a function_call_output",
    ),
]


def check_items(items: Sequence[InputItem]) -> None:
    """Refuse, by name, known fields of items and their parts that we do not support."""
    for i, item in enumerate(items):
        check_extra(item, _UNSUPPORTED_IN_ITEM, f"input[{i}].", labels=_LABELS_OF_ITEM)
        field, parts = _parts_of(item)
        for j, part in enumerate(parts):
            check_extra(part, _UNSUPPORTED_IN_PART, f"input[{i}].{field}[{j}].", labels=_LABELS_OF_PART)


def _parts_of(item: InputItem) -> tuple[str, Sequence[Body]]:
    """The field that may hold parts, and the parts it holds."""
    if isinstance(item, InputMessage) and isinstance(item.content, list):
        return "content", item.content
    if isinstance(item, InputCallOutput) and isinstance(item.output, list):
        return "output", item.output
    return "", ()

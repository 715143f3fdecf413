"""What a `/v1/responses` request may say, field by field, by the rules of `backend.server.fields`.

This server keeps no responses: whatever would need one kept is refused by name. Replies are built elsewhere, from
`openai.types.responses`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from backend.conversation import Constraint
from backend.errors import Rejected
from backend.server.fields import Body, check_extra, parse_body
from backend.server.responses_items import InputItem, check_items
from backend.server.sampling import MAX_TOP_LOGPROBS, DrawFields
from backend.server.structured import schema_constraint
from backend.server.tools import Function, NamedChoice, NamedFunction, ToolChoice

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "access_programs": (None,),
    "background": (None, False),
    "background_options": (None,),
    "context_management": (None, []),
    "image": (None,),
    "moderation": (None,),
    "prompt": (None,),
    "reasoning": (None, {}, {"effort": None}, {"effort": "none"}),
    "service_tier": (None, "auto", "default"),
    "truncation": (None, "disabled"),
}
"""Known fields that we do not support, with the values that change nothing."""

_STATEFUL: dict[str, tuple[Any, ...]] = {
    "conversation": (None,),
    "previous_response_id": (None,),
    "store": (None, False),
}
"""Fields that need a server that keeps responses, with the values that do not. Left out, `store` is false here."""

_LABELS = frozenset(
    {
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Known fields that ask nothing of this server."""

_UNSUPPORTED_IN_TOOL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (None, [], ["direct"]),
    "async": (None, False),
    "defer_loading": (None, False),
}

_LABELS_OF_TOOL = frozenset({"output_schema"})


class FlatTool(Function):
    """One tool: a function whose fields stand beside its type."""

    type: Literal["function"]


class FlatChoice(NamedFunction):
    """The demand to call one function."""

    type: Literal["function"]


class TextFormat(Body):
    """The form of the answer: any text, any JSON object, or JSON that `schema` describes, `strict` or not."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def constraint(self) -> Constraint | None:
        """What it demands; None for text. Raises Rejected, naming the field, for what is missing."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return schema_constraint({"type": "object"}, "text.format")
        for name, value in (("name", self.name), ("schema", self.schema_)):
            if value is None:
                raise Rejected(f"text.format.{name} is missing", param=f"text.format.{name}", code="invalid_value")
        return schema_constraint(self.schema_ or {}, "text.format.schema")


class TextConfig(Body):
    """How the answer's text is to be."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesStreamOptions(Body):
    """What a stream carries beside the text: nothing that could be chosen."""

    include_obfuscation: Literal[False] | None = None


def _as_items(value: Any) -> Any:
    """Plain text is one message of the user's."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesRequest(DrawFields):
    """Body of `POST /v1/responses`. Beyond the OpenAI API it takes what says how tokens are drawn, as a chat does."""

    model: str
    input: Annotated[
        list[InputItem],
        Field(min_length=1),
        BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
    ]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextConfig | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's text is to come with log-probabilities."""
        return "message.output_text.logprobs" in (self.include or ())

    def choice(self) -> ToolChoice | None:
        """`tool_choice` as a chat would have it."""
        if isinstance(self.tool_choice, FlatChoice):
            return NamedChoice(type="function", function=NamedFunction(name=self.tool_choice.name))
        return self.tool_choice


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Read a request body; raises Rejected, naming the field but never its contents."""
    request = parse_body(ResponsesRequest, body)
    for name, harmless in _STATEFUL.items():
        if (request.model_extra or {}).get(name) not in harmless:
            raise Rejected(
                f"{name} is not supported: this server keeps no responses; send the whole conversation in input",
                param=name,
                code="unsupported_parameter",
            )
    check_extra(request, _UNSUPPORTED, "", labels=_LABELS | _STATEFUL.keys())
    check_items(request.input)
    for i, tool in enumerate(request.tools or ()):
        check_extra(tool, _UNSUPPORTED_IN_TOOL, f"tools[{i}].", labels=_LABELS_OF_TOOL)
    if request.stream_options is not None and not request.stream:
        raise Rejected("stream_options is only allowed with stream: true", param="stream_options")
    return request

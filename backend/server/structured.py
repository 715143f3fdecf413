"""The fields that demand a form of the answer: `response_format` (OpenAI) and `structured_outputs` (vLLM).

They become one Constraint; whether it can be compiled is the engine's to say. Knows no endpoint.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from backend.conversation import Constraint
from backend.errors import Rejected
from backend.server.depth import check_depth
from backend.server.fields import Body, check_extra
from backend.server.structural_tag import tag_grammar

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"disable_additional_properties": (None, False)}


class StructuredOutputs(Body):
    """vLLM's object: exactly one of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`."""

    json_schema: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None

    def constraint(self) -> Constraint:
        """The one demand it makes; raises Rejected unless there is exactly one."""
        prefix = "structured_outputs"
        check_extra(self, _UNSUPPORTED, f"{prefix}.")
        whitespace = "" if self.disable_any_whitespace else self.whitespace_pattern
        demands: list[Constraint] = []
        if self.json_schema is not None:
            demands.append(schema_constraint(self.json_schema, f"{prefix}.json", whitespace))
        if self.regex is not None:
            demands.append(Constraint("regex", self.regex, f"{prefix}.regex"))
        if self.choice is not None:
            demands.append(Constraint("choice", json.dumps(self.choice), f"{prefix}.choice"))
        if self.grammar is not None:
            demands.append(Constraint("grammar", self.grammar, f"{prefix}.grammar"))
        if self.json_object:
            demands.append(schema_constraint({"type": "object"}, f"{prefix}.json_object", whitespace))
        if self.structural_tag is not None:
            grammar = tag_grammar(self.structural_tag, f"{prefix}.structural_tag")
            demands.append(Constraint("lark", grammar, f"{prefix}.structural_tag"))
        if len(demands) != 1:
            raise Rejected(
                f"{prefix} must hold exactly one of json, regex, choice, grammar, json_object and structural_tag; "
                f"it holds {len(demands)}",
                param=prefix,
                code="invalid_value",
            )
        return demands[0]


class JsonSchema(Body):
    """A named schema. `strict` false would allow an answer that does not fit; ours always fit."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """Any text, any JSON object, or JSON that a schema describes."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def format_constraint(response_format: ResponseFormat | None) -> Constraint | None:
    """What `response_format` demands; None for text."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return schema_constraint({"type": "object"}, "response_format")
    if response_format.json_schema is None:
        raise Rejected(
            "response_format.json_schema is missing", param="response_format.json_schema", code="invalid_value"
        )
    schema = response_format.json_schema.schema_ or {"type": "object"}
    return schema_constraint(schema, "response_format.json_schema.schema")


def schema_constraint(schema: dict[str, Any] | str, param: str, whitespace: str | None = None) -> Constraint:
    """The constraint of a JSON schema, given as an object or as its text; raises Rejected for one nested too deep."""
    if isinstance(schema, dict):
        check_depth(schema, param)
    return Constraint("json_schema", schema if isinstance(schema, str) else json.dumps(schema), param, whitespace)

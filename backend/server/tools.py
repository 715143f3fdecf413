"""The fields that offer functions to a model, and what they come to: tools of the prompt, a demand on the answer.

Knows no endpoint; functions may stand in an object of their own (chat) or not (responses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from backend.conversation import Constraint
from backend.errors import Rejected
from backend.server.depth import check_depth
from backend.server.fields import Body
from backend.tool_calls import ToolFormat

MAX_TOOLS = 128

_NAME = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Body):
    """A function as a client describes it. `strict` changes nothing: forced arguments always fit."""

    name: _NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """One tool: a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """A function's name."""

    name: _NAME


class NamedChoice(Body):
    """The demand to call one function."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools: those of the prompt in HF's form, whether calls are read, and what is forced."""

    tools: tuple[Mapping[str, Any], ...] = ()
    reads_calls: bool = False
    constraint: Constraint | None = None


def tool_use(
    functions: Sequence[Function],
    choice: ToolChoice | None,
    *,
    parallel: bool,
    form: ToolFormat | None,
    where: str = ".function",
) -> ToolUse:
    """Read the fields `tools`, `tool_choice` and `parallel_tool_calls` together; raises Rejected, naming the field.

    With the choice `none` the model is not told of the tools at all. `form` is None for a model that knows none.
    `where` leads from a tool to its function's fields.
    """
    _check(functions, choice, where)
    if not functions or choice == "none":
        return ToolUse()
    if form is None:
        raise Rejected(
            "this model's chat template knows no tools, or calls them in a form that is not supported",
            param="tools",
            code="unsupported_parameter",
        )
    tools = tuple(_template_form(function) for function in functions)
    if choice in (None, "auto"):
        return ToolUse(tools, reads_calls=True)
    wanted = [f for f in functions if not isinstance(choice, NamedChoice) or f.name == choice.function.name]
    schemas = [(f.name, f.parameters or {"type": "object"}) for f in wanted]
    parallel = parallel and not isinstance(choice, NamedChoice)
    constraint = Constraint("lark", form.grammar(schemas, parallel=parallel), "tools")
    return ToolUse(tools, reads_calls=True, constraint=constraint)


def check_history(where: str | None, form: ToolFormat | None) -> None:
    """Refuse a conversation that holds calls (the first at the path `where`) for a model that knows none."""
    if where and form is None:
        raise Rejected(f"{where}: this model's chat template knows no tools", param=where, code="unsupported_parameter")


def refuse_two_forms(use: ToolUse, other: object) -> None:
    """Refuse a forced call beside any other demand on the answer's form."""
    if use.constraint and other:
        raise Rejected(
            "tool_choice asks for a call, which leaves no place for another form of answer: send one",
            param="tool_choice",
            code="invalid_value",
        )


def _check(functions: Sequence[Function], choice: ToolChoice | None, where: str) -> None:
    if len(functions) > MAX_TOOLS:
        raise Rejected(
            f"tools holds {len(functions)} tools; at most {MAX_TOOLS} are taken", param="tools", code="invalid_value"
        )
    names = [function.name for function in functions]
    for index, function in enumerate(functions):
        if names.index(function.name) != index:
            param = f"tools[{index}]{where}.name"
            raise Rejected(f"{param} names {function.name!r} a second time", param=param, code="invalid_value")
        check_depth(function.parameters, f"tools[{index}]{where}.parameters")
    if choice is not None and choice not in ("none", "auto") and not functions:
        raise Rejected("tool_choice asks for a call, but tools is empty", param="tool_choice", code="invalid_value")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        raise Rejected(
            f"tool_choice names {choice.function.name!r}, which is not among the tools",
            param="tool_choice",
            code="invalid_value",
        )


def _template_form(function: Function) -> Mapping[str, Any]:
    described = {"name": function.name, "description": function.description or ""}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**described, "parameters": parameters}}

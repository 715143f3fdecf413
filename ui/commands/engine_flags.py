"""The engine's flags on a command of ours, made from the fields of `EngineConfig`: one source of names and words."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from backend.config import EngineConfig
from backend.server.arguments import from_environment
from backend.setting import kind_of

PANEL = "Engine"

OF_SERVERS = ("host", "port", "insecure", "allowed_origins", "allowed_media_domains", "drain_timeout_s")
"""Settings of an engine that others use, too."""


def with_engine_flags(
    *, without: Collection[str] = (), defaults: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command every engine flag but `without`; it receives as `engine` the settings of
    those that were used, and of those that the environment names.

    `defaults` are what the command itself takes for a setting, as its help says then.
    """
    fields = [field for field in dataclasses.fields(EngineConfig) if field.name not in without]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def wrapper(**given: Any) -> int:
            used = {field: given.pop(field.name) for field in fields}
            flags = {
                field.name: False if field.metadata["off_flag"] else value
                for field, value in used.items()
                if value is not None
            }
            return command(**given, engine=from_environment() | flags)

        kept = [parameter for parameter in own.parameters.values() if parameter.name != "engine"]
        parameters = [*kept, *(_parameter(field, defaults.get(field.name, field.default)) for field in fields)]
        wrapper.__signature__ = own.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def to_argv(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings that were used, as arguments for `python -m backend.server`; its secrets are `to_env`'s."""
    argv: list[str] = []
    for field in dataclasses.fields(EngineConfig):
        if field.name in engine and not field.metadata["secret"]:
            value = engine[field.name]
            if kind_of(field) is not bool:
                argv.append(f"{_flag(field)}={value}")
            elif value is not field.metadata["off_flag"]:
                argv.append(_flag(field))
    return tuple(argv)


def to_env(engine: Mapping[str, Any]) -> dict[str, str]:
    """The secrets of `engine` as the environment variables that the backend reads."""
    return {
        field.metadata["env"]: str(engine[field.name])
        for field in dataclasses.fields(EngineConfig)
        if field.metadata["secret"] and engine.get(field.name)
    }


def default(text: str) -> str:
    """How help speaks of a default that the option itself does not carry."""
    return f"\\[default: {text}]"  # the backslash keeps Rich from reading it as markup


def _flag(field: dataclasses.Field[Any]) -> str:
    name = field.name.replace("_", "-")
    return f"--no-{name}" if field.metadata["off_flag"] else f"--{name}"


def _parameter(field: dataclasses.Field[Any], stands_for: Any) -> inspect.Parameter:
    """The flag of one setting; `stands_for` is what holds without it, None if the help text itself says that."""
    meta, kind = field.metadata, kind_of(field)
    told, _, otherwise = meta["help"].partition(" (default: ")
    words = [told[0].upper() + told[1:] + "."]
    if meta["choices"]:
        words.append(f"One of {', '.join(meta['choices'])}.")
    if meta["env"]:
        words.append(f"Also read from {meta['env']}.")
    if otherwise:
        words.append(default(otherwise.removesuffix(")")))
    elif stands_for is not None and kind is not bool:
        words.append(default(f"{stands_for:g}" if isinstance(stands_for, float) else str(stands_for)))
    option = typer.Option(
        _flag(field),
        help=" ".join(words),
        show_default=False,
        metavar=None if kind is bool else _METAVARS.get(kind, "TEXT"),
        rich_help_panel=PANEL,
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


_METAVARS = {int: "N", float: "X", Path: "PATH"}

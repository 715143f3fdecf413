"""A setting: a dataclass field with its help text, limits and names, and the check of a value against them.

Knows no setting by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backend.errors import ConfigError

_KINDS: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool, "Path": Path}
_KIND_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}


def setting(
    default: Any,
    help_text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    off_flag: bool = False,
    env: str | None = None,
) -> Any:
    """A field with what the command line and the checks need; a default of None allows None.

    `off_flag`: the flag is `--no-…` and turns it off. `env`: the environment variable read where the flag is not given.
    """
    metadata = {
        "help": help_text,
        "at_least": at_least,
        "at_most": at_most,
        "choices": choices,
        "secret": secret,
        "off_flag": off_flag,
        "env": env,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def kind_of(field: dataclasses.Field[Any]) -> type:
    """The field's type without its None: int, float, str, bool or Path, as its annotation names it."""
    return _KINDS[str(field.type).removesuffix(" | None")]


def check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Raise ConfigError unless `value` is of the field's kind and within its limits."""
    if value is None and field.default is None:
        return
    kind, meta = kind_of(field), field.metadata
    fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (meta["choices"] and value not in meta["choices"]):
        raise wrong_value(field, value)
    low, high = meta["at_least"], meta["at_most"]
    # Written so that a NaN, which compares false with everything, fails too.
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        raise wrong_value(field, value)


def wrong_value(field: dataclasses.Field[Any], value: Any) -> ConfigError:
    """The error for a value of the wrong kind or out of limits."""
    meta = field.metadata
    limit = _KIND_NAMES[kind_of(field)]
    if meta["choices"]:
        limit = "one of " + ", ".join(meta["choices"])
    elif meta["at_least"] is not None and meta["at_most"] is not None:
        limit += f" from {meta['at_least']} to {meta['at_most']}"
    elif meta["at_least"] is not None:
        limit += f" of at least {meta['at_least']}"
    shown = "***" if meta["secret"] else repr(value)
    return ConfigError(f"--{field.name.replace('_', '-')} is {shown}; it must be {limit}")


def listed(text: str | None) -> tuple[str, ...]:
    """The words of a setting that takes several, in lower case."""
    return tuple(word.strip().lower() for word in (text or "").split(",") if word.strip())


def check_list(flag: str, text: str | None, pattern: re.Pattern[str], kind: str) -> None:
    """Raise ConfigError unless each word of the list is of that kind."""
    for word in listed(text):
        if not pattern.fullmatch(word):
            raise ConfigError(f"{flag} holds {word!r}; each must be {kind}")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A parenthesis that names the choice nearest to `word`, or nothing."""
    near = difflib.get_close_matches(word.split("=")[0], list(choices), n=1)
    return f" (did you mean {near[0]}?)" if near else ""

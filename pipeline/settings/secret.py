"""Secrets named in settings: given, in an environment variable, or in a file. Never part of a message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LONGEST = 4096


class SecretError(ValueError):
    """A secret that cannot be read. Says where it was looked for, nothing of what is there."""


def check_readable(where: str | Path | None) -> None:
    """Raise `SecretError` unless the environment variable or the file named `where` can be read; None is no place."""
    if isinstance(where, Path):
        from_file(where)
    elif where is not None:
        from_environment(where)


def read_secret(given: str | None, variable: str | None, path: Path | None) -> str | None:
    """The secret, wherever it is kept; None without one. Raises `SecretError`."""
    if variable is not None:
        return from_environment(variable)
    return from_file(path) if path is not None else given


def from_environment(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The value of an environment variable. Raises `SecretError` if it is not set or empty."""
    if not environment.get(name):
        raise SecretError(f"the environment variable {name} is not set")
    return environment[name]


def from_file(path: Path) -> str:
    """The first line of a file, without the end of the line. Raises `SecretError`."""
    path = path.expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            secret = file.readline(LONGEST).rstrip("\r\n")
    except OSError as error:
        raise SecretError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise SecretError(f"cannot read {path}: it is not UTF-8 text") from None
    if not secret:
        raise SecretError(f"{path} has an empty first line")
    return secret

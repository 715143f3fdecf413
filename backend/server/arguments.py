"""The command line of `watchword serve`, made from the fields of `EngineConfig`. Knows no setting by name."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from backend.config import EngineConfig
from backend.errors import ConfigError
from backend.setting import did_you_mean, kind_of, wrong_value


def parse_args(argv: Sequence[str] | None, *, prog: str = "watchword serve") -> EngineConfig:
    """The config that a command line names. `--help` prints every flag with its default and exits 0.

    Raises ConfigError for an unknown flag (naming the nearest one) and for any value out of kind or limit.
    """
    parser = _Parser(prog=prog, allow_abbrev=False, description="Serve a model over the OpenAI API.")
    for field in dataclasses.fields(EngineConfig):
        _add_flag(parser, field)
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        raise ConfigError(f"unknown argument {unknown[0]}{did_you_mean(unknown[0], flags)}; see {prog} --help")
    values = {name: value for name, value in vars(known).items() if value is not None}
    return EngineConfig(**from_environment() | values)


def from_environment() -> dict[str, Any]:
    """What environment variables say of the settings that may be given by one."""
    return {
        field.name: _parse(field, kind_of(field), text)
        for field in dataclasses.fields(EngineConfig)
        if field.metadata["env"] and (text := os.environ.get(field.metadata["env"]))
    }


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def _add_flag(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    meta, flag = field.metadata, "--" + field.name.replace("_", "-")
    if meta["off_flag"]:
        parser.add_argument("--no-" + flag[2:], dest=field.name, action="store_false", default=None, help=meta["help"])
        return
    help_text = meta["help"].replace("%", "%%")
    if kind_of(field) is bool:
        parser.add_argument(flag, dest=field.name, action="store_true", default=None, help=help_text)
        return
    if meta["choices"]:
        help_text += f"; one of {', '.join(meta['choices'])}"
    if meta["env"]:
        help_text += f"; also read from {meta['env']}"
    if field.default is not None:
        help_text += f" (default: {field.default})"
    kind = kind_of(field)
    parser.add_argument(
        flag,
        dest=field.name,
        default=None,
        metavar=kind.__name__.upper(),
        type=lambda text: _parse(field, kind, text),
        help=help_text,
    )


def _parse(field: dataclasses.Field[Any], kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise wrong_value(field, text) from None

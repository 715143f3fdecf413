"""The command line: `watchword run | serve | watch | chat`. The composition root; each command is a module beside it.

Imports nothing heavy, so that `--help` is quick and a supervising process stays small. Every error that a user can do
something about ends as one line on stderr and exit status 2, without credentials.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from camera_sources.url import redact
from pipeline.supervisor import CONFIG_ERROR, ChildFailed
from ui.commands.app import app
from ui.commands.bench import bench
from ui.commands.chat import chat
from ui.commands.config import config
from ui.commands.export import export
from ui.commands.help_text import Command, Group
from ui.commands.run import run
from ui.commands.selftest import selftest
from ui.commands.serve import serve
from ui.commands.tune import tune
from ui.commands.watch import watch
from ui.errors import is_broken, is_users, of_arguments, say

ARGUMENTS = "WATCHWORD_ARGUMENTS"
BROKEN = 70
"""Exit status when a part of the program itself broke."""
SECRET_FLAGS = ("--api-key",)

cli = typer.Typer(
    cls=Group,
    name="watchword",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, serve, watch, chat, bench, tune, selftest, export):
    cli.command(cls=Command)(command)
cli.add_typer(config)
cli.command(hidden=True)(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"watchword {importlib.metadata.version('watchword')}")
        raise typer.Exit


@cli.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Puts what a camera watches into words, on an engine that never lets a camera stall a chat."""


def main() -> None:
    """Entry point of `watchword`."""
    kept = os.environ.pop(ARGUMENTS, None)
    argv = json.loads(kept) if kept else sys.argv[1:]
    if not kept and holds_secret(argv):
        _start_again_without_arguments(argv)
    status = execute(argv)
    gc.freeze()  # all is closed; looking through a million objects of torch once more would take seconds
    sys.exit(status)


def execute(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    try:
        return cli(list(argv) or ["--help"], prog_name="watchword", standalone_mode=False) or 0
    except TyperException as error:
        return _refuse(of_arguments(error.format_message()) + _where_help_is(error))
    except ChildFailed as failure:
        # A wrong setting was already said by the child itself, in its own one line.
        return 2 if failure.exit_code == CONFIG_ERROR else _refuse(str(failure), failure.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if is_broken(error):
            return _refuse(say(error), BROKEN)
        if not is_users(error):
            raise
        return _refuse(say(error))


def holds_secret(argv: Sequence[str]) -> bool:
    """Whether somebody who lists this machine's processes would read a credential in `argv`."""
    return any(redact(word) != word or word.split("=")[0] in SECRET_FLAGS for word in argv)


def _start_again_without_arguments(argv: Sequence[str]) -> None:
    """Replace this process by itself with `argv` moved where only its owner can read it."""
    os.environ[ARGUMENTS] = json.dumps(list(argv))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "ui.cli"])


def _where_help_is(error: TyperException) -> str:
    """`; see watchword watch --help` for a mistake in a command's arguments."""
    context = getattr(error, "ctx", None)
    return "" if context is None else f"; see {context.command_path} --help"


def _refuse(line: str, exit_status: int = 2) -> int:
    typer.echo(f"watchword: {redact(' '.join(line.split()))}", err=True)
    return exit_status


if __name__ == "__main__":
    main()

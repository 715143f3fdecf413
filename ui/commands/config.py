"""`watchword config check` and `watchword config example`: a configuration file looked at, and one to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ui.commands.help_text import Command, Group

config = typer.Typer(cls=Group, name="config", help="Check a configuration file, or print one to begin with.")


@config.command(cls=Command)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file, such as watchword.yaml.", show_default=False)],
) -> int:
    """Say everything that is wrong with FILE, a line each; exit status 2 if anything is. Cameras are not asked."""
    from pipeline.settings.document import read
    from pipeline.settings.fault import SettingsError

    try:
        settings = read(file.expanduser()).settings
    except SettingsError as error:
        for line in error.lines:
            typer.echo(line, err=True)
        return 2
    names = ", ".join(camera.name for camera in settings.cameras) or "none"
    typer.echo(f"{file} is good; cameras: {names}")
    return 0


@config.command(cls=Command)
def example() -> int:
    """Print a configuration file with every setting explained: `watchword config example > watchword.yaml`."""
    text = (Path(__file__).parent.parent.parent / "pipeline/settings/example.yaml").read_text(encoding="utf-8")
    typer.echo(text, nl=False)
    return 0

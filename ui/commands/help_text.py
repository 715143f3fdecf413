"""Help without noise: what takes no value shows no type, and a paragraph breaks where the terminal ends."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Plain:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As typer's; each paragraph of the help becomes one line, which typer then wraps (else only the first is)."""
        super().__init__(*args, **kwargs)
        self.help: str | None = self.help and "\n\n".join(" ".join(part.split()) for part in self.help.split("\n\n"))

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` among them; switches marked as taking nothing, arguments without Python's types."""
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            if param.param_type_name == "argument":
                param.display_type_rich = _nothing
        return params


def _nothing(ctx: Any) -> None:
    """What an argument shows for its type: its help says what it takes."""


class Command(_Plain, TyperCommand):
    """One command of `watchword`."""


class Group(_Plain, TyperGroup):
    """`watchword` itself."""

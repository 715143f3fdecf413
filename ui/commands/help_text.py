"""Help without noise: what takes no value shows no type."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _NoTypeOfSwitches:
    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` among them, switches marked as taking nothing."""
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_NoTypeOfSwitches, TyperCommand):
    """One command of `watchword`."""


class Group(_NoTypeOfSwitches, TyperGroup):
    """`watchword` itself."""

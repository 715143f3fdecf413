"""README against the program: flags, files and links it names exist, and no flag is missing from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from backend.server.protocol import LABELS, UNSUPPORTED, ChatRequest
from tests.architecture.sources import ROOT
from ui.cli import cli

README = (ROOT / "README.md").read_text(encoding="utf-8")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def flags_by_command() -> dict[str, set[str]]:
    """The long flags of every command that `--help` lists."""
    group = typer.main.get_command(cli)
    commands = getattr(group, "commands")  # noqa: B009 (typer's own group class has no public type)
    return {
        name: {flag for option in command.params for flag in option.opts if flag.startswith("--")} - {"--help"}
        for name, command in commands.items()
        if not command.hidden
    }


def table_row(flag: str) -> str | None:
    """The row of the flag table that begins with `flag`."""
    rows = [line for line in README.splitlines() if line.startswith("| `--") and f"`{flag}`" in line.split("|")[1]]
    return rows[0] if rows else None


def test_every_flag_has_a_row_that_names_its_commands() -> None:
    commands = flags_by_command()
    for flag in sorted(set().union(*commands.values())):
        row = table_row(flag)
        assert row is not None, f"{flag} is missing from README's table"
        having = {name for name, flags in commands.items() if flag in flags}
        told = row.split("|")[2]
        named = having if told.strip() == "all" else {name for name in commands if re.search(rf"\b{name}\b", told)}
        assert named == having, f"{flag} belongs to {sorted(having)}; README says {told.strip()!r}"


def test_no_flag_is_invented() -> None:
    known = set().union(*flags_by_command().values()) | {"--help"}
    assert set(FLAG.findall(README)) <= known


def test_commands_shown_have_only_flags_of_their_own() -> None:
    commands = flags_by_command()
    shown = re.findall(rf"watchword ({'|'.join(commands)})\b([^#`\n]*)", README)
    assert {name for name, _ in shown} == set(commands)
    for name, arguments in shown:
        assert set(FLAG.findall(arguments)) <= commands[name]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_files_of_the_reading_order_exist() -> None:
    order = README.split("To read the code")[1].split("\n\n")[0]
    folder = Path()
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", order):
        path = Path(name)
        folder = path.parent if len(path.parts) > 1 else folder
        assert (ROOT / folder / path.name).exists(), name


def test_every_field_of_a_chat_request_is_in_the_table_with_its_fate() -> None:
    words = {"honoured": set(ChatRequest.model_fields), "accepted": set(LABELS), "refused": set(UNSUPPORTED)}
    rows = [
        line.split("|") for line in README.partition("The fields of `/v1/chat")[2].splitlines() if line[:3] == "| `"
    ]
    table = rows[: next(i for i, row in enumerate(rows) if row[1].strip().startswith("`--"))]
    told = {fate: set[str]() for fate in words}
    for row in table:
        fate = next(word for word in words if word in row[2])
        told[fate] |= set(re.findall(r"`(\w+)`", row[1]))
    assert told == words

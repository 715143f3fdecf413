"""README and the packages' own pages against the program: flags, files and links exist, and no flag is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from backend.server.protocol import LABELS, UNSUPPORTED, ChatRequest
from tests.architecture.sources import README_PAGES, ROOT
from ui.cli import cli

PAGES = {path: (ROOT / path).read_text(encoding="utf-8") for path in README_PAGES}
README = PAGES[Path("README.md")]
COMMANDS, API, ENGINE, MEASUREMENTS = (
    PAGES[Path(folder) / "README.md"] for folder in ("ui", "backend/server", "backend", "tests/bench")
)
LINK = re.compile(r"\]\(([^)]+)\)")
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
    rows = [line for line in COMMANDS.splitlines() if line.startswith("| `--") and f"`{flag}`" in line.split("|")[1]]
    return rows[0] if rows else None


def test_every_flag_has_a_row_that_names_its_commands() -> None:
    commands = flags_by_command()
    for flag in sorted(set().union(*commands.values())):
        row = table_row(flag)
        assert row is not None, f"{flag} is missing from the table of ui/README.md"
        having = {name for name, flags in commands.items() if flag in flags}
        told = row.split("|")[2]
        named = having if told.strip() == "all" else {name for name in commands if re.search(rf"\b{name}\b", told)}
        assert named == having, f"{flag} belongs to {sorted(having)}; the table says {told.strip()!r}"


def test_no_flag_is_invented() -> None:
    known = set().union(*flags_by_command().values()) | {"--help"}
    for page, text in PAGES.items():
        assert set(FLAG.findall(text)) <= known, page


def test_commands_shown_have_only_flags_of_their_own() -> None:
    commands = flags_by_command()
    told: set[str] = set()
    for text in PAGES.values():
        shown = re.findall(rf"watchword ({'|'.join(commands)})\b([^#`\n]*)", text)
        told |= {name for name, _ in shown}
        for name, arguments in shown:
            assert set(FLAG.findall(arguments)) <= commands[name]
    assert told == set(commands)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(PAGES[page]):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        file = (ROOT / page.parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in [words.lower().replace(" ", "-") for words in headings], target


def test_every_page_is_linked_from_readme() -> None:
    linked = {Path(target.partition("#")[0]) for target in LINK.findall(README)}
    assert set(PAGES) - {Path("README.md")} <= linked


def test_figures_of_readme_are_those_of_the_measurements() -> None:
    told = README.partition("On 2 CPU cores without a GPU")[2].partition("[tests/bench/README.md]")[0]
    figures = set(re.findall(r"(?<![\w.])\d[\d,.]*\d(?= ms)", told))
    assert len(figures) >= 6
    table = MEASUREMENTS.partition("## What a camera costs a chat")[2].partition("\n## ")[0]
    assert figures <= set(re.findall(r"\d[\d,.]*\d", table))


def test_files_of_the_reading_order_exist() -> None:
    order = ENGINE.split("## Reading the code")[1].split("\n\n")[0]
    folder = Path()
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", order):
        path = Path(name)
        folder = path.parent if len(path.parts) > 1 else folder
        assert (ROOT / folder / path.name).exists(), name


def test_every_field_of_a_chat_request_is_in_the_table_with_its_fate() -> None:
    words = {"honoured": set(ChatRequest.model_fields), "accepted": set(LABELS), "refused": set(UNSUPPORTED)}
    rows = [line.split("|") for line in API.partition("## Chat completions")[2].splitlines() if line[:3] == "| `"]
    told = {fate: set[str]() for fate in words}
    for row in rows:
        fate = next(word for word in words if word in row[2])
        told[fate] |= set(re.findall(r"`(\w+)`", row[1]))
    assert told == words

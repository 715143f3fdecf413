"""Why a text is no YAML, in a person's words: the parser's finding and the line it stands on, made a suggestion.

Never repeats a value, which may be a password: a key, a sign, a line number at most. Knows nothing of settings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ruamel.yaml.error import MarkedYAMLError, StringMark

from pipeline.plain_text import plain

_KEY = re.compile(r"(?P<indent>\s*(?:-\s+)*)(?P<key>[\w.-]+)\s*:(?P<value>.*)")
_NO_SPACE = re.compile(r"\s*(?:-\s+)*(?P<key>\w+):(?!//)[^\s:]")
_SIGN = re.compile(r"found character '(.)' that cannot start any token")
_TWICE = re.compile(r'found duplicate key "([^"]*)"')
_LONGEST_KEY = 40


def describe(error: MarkedYAMLError, text: str) -> tuple[int | None, str]:
    """(line from 1, what is wrong and how to mend it). The line is None where the parser names none."""
    problem = str(error.problem or "")
    if twice := _TWICE.match(problem):  # it goes on with the values, secrets or not
        return _line(error), f"{plain(twice[1])} is given twice; keep one"
    lines = text.splitlines()
    if "quoted scalar" in str(error.context) and error.context_mark is not None:
        return error.context_mark.line + 1, "not valid YAML: a quotation mark is opened here and never closed"
    at = _line(error)
    if at is None:
        return None, f"not valid YAML: {plain(problem)}"
    if "\\t" in problem or "\t" in _indent(lines, at):
        return at, "not valid YAML: a tab stands in front; indent with spaces"
    if (line := _without_space(lines, at)) is not None:
        number, key = line
        return number, f"not valid YAML: a space is missing after `{key}:`"
    hint = _hint(problem, lines, at)
    return at, f"not valid YAML: {hint or plain(problem)}"


def _line(error: MarkedYAMLError) -> int | None:
    mark: StringMark | None = error.problem_mark or error.context_mark
    return None if mark is None else mark.line + 1


def _indent(lines: Sequence[str], number: int) -> str:
    line = lines[number - 1] if number <= len(lines) else ""
    return line[: len(line) - len(line.lstrip())]


def _without_space(lines: Sequence[str], number: int) -> tuple[int, str] | None:
    """(line, key) of a `key:value` on this line or the one before it."""
    for candidate in (number, number - 1):
        if 1 <= candidate <= len(lines) and (found := _NO_SPACE.match(lines[candidate - 1])):
            return candidate, found["key"][:_LONGEST_KEY]
    return None


def _hint(problem: str, lines: Sequence[str], number: int) -> str | None:
    found = _KEY.match(lines[number - 1]) if number <= len(lines) else None
    key = None if found is None else found["key"][:_LONGEST_KEY]
    value = "" if found is None else found["value"].strip()
    if sign := _SIGN.match(problem):
        return f"text that begins with {plain(sign[1])} needs quotes"
    if "undefined alias" in problem:
        return "text that begins with * needs quotes"
    if key is None:
        return None
    if value[:1] in ("{", "[", '"', "'", "&", "!"):
        return f"what stands after `{key}:` begins with {value[0]} but does not end like that; put text in quotes"
    if ": " in value:
        return f"the text after `{key}:` has a colon in it; put it in quotes"
    if "mapping values" in problem or "block end" in problem:
        return f"`{key}` is indented unlike the settings beside it; begin it below them"
    return None

"""Captions in JSON: the schema asked for, reading the answer, and its description while it is still coming in."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pipeline.events import Details
from pipeline.plain_text import plain

if TYPE_CHECKING:
    from openai.types.shared_params import ResponseFormatJSONSchema

ASKED = (
    " Answer in JSON: title (a few words), description (one or two sentences), count (how many people are visible) and "
    "notable (whether somebody should be told at once)."
)
LONGEST_TITLE = 200
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "description": {"type": "string"},
        "count": {"type": "integer"},
        "notable": {"type": "boolean"},
    },
    "required": ["title", "description", "count", "notable"],
    "additionalProperties": False,
}
PROBE_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}

_DESCRIPTION = re.compile(r'"description"\s*:\s*"((?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*)')
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")  # the first half of a character beyond 16 bits


def response_format(name: str, schema: dict[str, object]) -> ResponseFormatJSONSchema:
    """What holds a server to `schema`."""
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def description_so_far(raw: str) -> str:
    """The description within the beginning of an answer; it only ever grows as `raw` does."""
    found = _DESCRIPTION.search(raw)
    if found is None:
        return ""
    try:
        return plain(json.loads(f'"{_HALF_PAIR.sub("", found[1])}"', strict=False))
    except ValueError:
        return ""


def try_parse(raw: str) -> tuple[str, Details] | None:
    """(description, details) of a whole answer; None if it is not what was asked for."""
    try:
        answer = json.loads(raw)
        title, description, count, notable = (answer[key] for key in ("title", "description", "count", "notable"))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    texts = isinstance(title, str) and isinstance(description, str) and isinstance(notable, bool)
    if not texts or not isinstance(count, int) or isinstance(count, bool) or not description.strip():
        return None
    return plain(description).strip(), Details(plain(title).strip()[:LONGEST_TITLE], count, notable)


def is_probe_passed(raw: str | None) -> bool:
    """Whether the answer to the probe kept to its schema."""
    try:
        answer = json.loads(raw or "")
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and isinstance(answer.get("ok"), bool)

"""How deep a client's JSON may nest where what reads it afterwards recurses. Knows no endpoint."""

from __future__ import annotations

from typing import Any

from backend.errors import Rejected

MAX_DEPTH = 100
"""So deep may a schema, a structural tag or a call's arguments nest."""


def check_depth(value: Any, param: str) -> None:
    """Raise Rejected for JSON nested deeper than `MAX_DEPTH`."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise too_deep(param)
        level = [v for item in level for v in _children(item)]


def too_deep(param: str) -> Rejected:
    """The refusal of what nests deeper than `MAX_DEPTH`."""
    return Rejected(f"{param} nests more than {MAX_DEPTH} levels deep", param=param, code="invalid_value")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []

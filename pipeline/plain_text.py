"""Text from a model or a server, made safe for terminals, pages and lines: it may hold anything."""

from __future__ import annotations

_BLANKS = dict.fromkeys(map(ord, "\t\n\v\f\r\x85"), " ")
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], None)
_TABLE = _CONTROLS | _BLANKS


def plain(text: str) -> str:
    """`text` without control characters (C0, DEL, C1): those that break or space lines as spaces, the others gone.

    Character by character, so that the pieces of a stream come out as the whole would.
    """
    return text.translate(_TABLE)

"""The little Markdown that models write, as HTML: lists, headings, bold, code. Everything else stays what it is.

The text is escaped before anything else happens, and no tag here has an attribute made of words, so whatever a model
says cannot become markup, a link or a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby

_BULLET = re.compile(r"\s*[-*+•]\s+(.*)")
_NUMBER = re.compile(r"\s*(\d{1,4})[.)]\s+(.*)")
_HEADING = re.compile(r"#{1,6} +(.*)")
_FENCE = re.compile(r"\s*```")
_INLINE = ((re.compile(r"`([^`]+)`"), r"<code>\1</code>"), (re.compile(r"\*\*(\S|\S.*?\S)\*\*"), r"<b>\1</b>"))


def to_html(text: str) -> str:
    """`text` as safe HTML. Any beginning of a text is fine, so that it can be shown while it grows."""
    return "".join(_block(kind, [line for _, line in lines]) for kind, lines in groupby(_kinds(text), lambda it: it[0]))


def _kinds(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the kind of block it belongs to."""
    in_code = False
    for line in text.splitlines():
        if _FENCE.match(line):
            in_code = not in_code
        elif in_code:
            yield "code", line
        elif _BULLET.fullmatch(line):
            yield "bullets", line
        elif _NUMBER.fullmatch(line):
            yield "numbers", line
        elif _HEADING.fullmatch(line):
            yield "heading", line
        else:
            yield ("text" if line.strip() else "gap"), line


def _block(kind: str, lines: list[str]) -> str:
    match kind:
        case "code":
            return f"<pre>{escape(chr(10).join(lines))}</pre>"
        case "bullets":
            return f"<ul>{_items(_BULLET, lines)}</ul>"
        case "numbers":
            first = _NUMBER.fullmatch(lines[0])
            return f'<ol start="{int(first[1]) if first else 1}">{_items(_NUMBER, lines)}</ol>'
        case "heading":
            return "".join(f"<p><b>{_inline(line.lstrip('# '))}</b></p>" for line in lines)
        case "text":
            return f"<p>{'<br>'.join(_inline(line) for line in lines)}</p>"
        case _:
            return ""


def _items(pattern: re.Pattern[str], lines: list[str]) -> str:
    found = (pattern.fullmatch(line) for line in lines)
    return "".join(f"<li>{_inline(match[match.lastindex or 0])}</li>" for match in found if match)


def _inline(text: str) -> str:
    text = escape(text)
    for pattern, tag in _INLINE:
        text = pattern.sub(tag, text)
    return text

"""Reads tool calls out of an answer while it comes: what is text stays text, what is a call is told piece by piece.

Calls that do not read as such come out as the text they are: an answer is never lost. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from backend.tool_calls import PYTHON_TAG, ToolFormat

_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of call number `index`: its id and name with the first piece, then its arguments as JSON text."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None


class ToolReader:
    """One answer's text, read once. `push` what comes, then `end`."""

    def __init__(self, form: ToolFormat) -> None:
        self.num_calls = 0
        self._form = form
        self._pending = ""
        self._call: _Call | None = None
        self._in_calls = False
        self._said_text = False

    def push(self, text: str) -> list[str | CallPiece]:
        """What `text` adds: pieces of text and of calls, in order."""
        said: list[str | CallPiece] = []
        self._pending += text
        before = None
        while self._pending and before != (self._pending, self._in_calls, self._call):
            before = (self._pending, self._in_calls, self._call)
            if self._call is not None:
                self._read_call(self._call, said)
            elif self._in_calls:
                self._find_call(said)
            elif self._form.begin:
                self._read_text(said)
            else:
                self._read_bare(said)
        return said

    def end(self) -> list[str | CallPiece]:
        """The answer has ended: what was held back, and a call that is no call, as text."""
        rest, self._pending = self._pending, ""
        if self._call is not None:
            rest = "" if self._call.is_told else self._form.begin + self._call.text + rest
        elif self._in_calls:
            rest = "" if self.num_calls else self._form.begin + rest
        elif self.num_calls:
            rest = rest.rstrip()
        return [rest] if rest else []

    def _read_text(self, said: list[str | CallPiece]) -> None:
        """Text up to where calls begin, without the blanks before; held back is what may be either."""
        begin, text = self._form.begin, self._pending
        at = text.find(begin)
        if at >= 0:
            self._pending, self._in_calls = text[at + len(begin) :], True
        else:
            at = len(text) - next(n for n in range(min(len(text), len(begin) - 1), -1, -1) if text.endswith(begin[:n]))
            self._pending = text[len(text[:at].rstrip()) :]
        if out := text[:at].rstrip():
            said.append(out)

    def _read_bare(self, said: list[str | CallPiece]) -> None:
        """Without a mark, calls are what begins the answer as JSON."""
        start = self._pending.lstrip()
        if not self._said_text:
            if PYTHON_TAG.startswith(start):
                return
            start = start.removeprefix(PYTHON_TAG).lstrip()
            if not start or start.startswith("{"):
                self._pending, self._in_calls = start, True
                return
        self._said_text = True
        said.append(self._pending)
        self._pending = ""

    def _find_call(self, said: list[str | CallPiece]) -> None:
        """Between calls: skip what separates them, begin the next one, or go back to text."""
        is_bare = self._form.is_list or not self._form.begin
        rest, end = self._pending.lstrip(" \t\r\n,;[]" if is_bare else " \t\r\n"), self._form.end
        if end and rest.startswith(end):
            self._pending, self._in_calls = rest[len(end) :], False
        elif rest.startswith("{"):
            self._pending, self._call = rest, _Call(self.num_calls, self._form.id_len)
        elif not rest or (end and end.startswith(rest)):
            self._pending = rest
        else:
            said.append(rest if self.num_calls else self._form.begin + rest)
            self._pending, self._in_calls, self._said_text = "", False, True

    def _read_call(self, call: _Call, said: list[str | CallPiece]) -> None:
        self._pending = call.push(self._pending)
        said += call.take()
        if call.is_done:
            self._call = None
            if call.is_told:
                self.num_calls += 1
            else:
                said.append(self._form.begin + call.text)


class _Call:
    """One JSON object while it comes."""

    def __init__(self, index: int, id_len: int) -> None:
        self.text = ""
        self.is_told = False
        self.is_done = False
        self._index = index
        self._id_len = id_len
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._arguments_from: int | None = None
        self._arguments_to: int | None = None
        self._num_sent = 0

    def push(self, text: str) -> str:
        """Take the object's part of `text`; returns the rest."""
        for offset, char in enumerate(text):
            self._scan(char, len(self.text) + offset)
            if self._depth == 0:
                self.text += text[: offset + 1]
                self.is_done = True
                return text[offset + 1 :]
        self.text += text
        return ""

    def take(self) -> list[str | CallPiece]:
        """Pieces of the call since the last time."""
        said: list[str | CallPiece] = []
        if not self.is_told and (head := _HEAD.match(self.text)):
            name = _readable(head[1])
            if name is not None:
                self._arguments_from = self._num_sent = head.end()
                said.append(self._begin(name, ""))
        if self._arguments_from is not None:
            end = len(self.text) if self._arguments_to is None else self._arguments_to
            if end > self._num_sent:
                said.append(CallPiece(self._index, self.text[self._num_sent : end]))
                self._num_sent = end
        elif self.is_done:
            said += self._whole()
        return said

    def _begin(self, name: str, arguments: str) -> CallPiece:
        self.is_told = True
        call_id = uuid.uuid4().hex[: self._id_len]
        return CallPiece(self._index, arguments, call_id if self._id_len < 24 else f"call_{call_id}", name)

    def _whole(self) -> list[CallPiece]:
        """A finished object whose fields stand in another order, or hold something else."""
        try:
            call: Any = json.loads(self.text)
            name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
            told = arguments if isinstance(arguments, str) else json.dumps(arguments)
        except (ValueError, RecursionError):
            return []
        return [self._begin(name, told)] if _is_text(name) and _is_text(told) else []

    def _scan(self, char: str, position: int) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            # What a head leads to is the first thing in the object that opens and closes.
            if self._depth == 1 and self._arguments_to is None:
                self._arguments_to = position + 1


def _readable(raw: str) -> str | None:
    """The text that a JSON string stands for; None for one that stands for none."""
    try:
        text = json.loads(raw)
    except ValueError:
        return None
    return text if _is_text(text) else None


def _is_text(value: Any) -> bool:
    """Whether `value` is text that can be sent: JSON's escapes can also say half a character (a lone surrogate)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except ValueError:
        return False
    return True

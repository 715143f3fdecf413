"""vLLM's `structural_tag`: free text in which certain beginnings commit the answer to a form, as a Lark grammar.

Both of its shapes are read: `structures` with `triggers`, and a `format` of nested parts. What has no counterpart in a
grammar here is refused by name. Knows no endpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from backend.errors import Rejected
from backend.server.depth import check_depth, too_deep
from backend.structured import ANY_WHITESPACE, MAX_GRAMMAR_CHARS

MAX_TRIGGERS = 128

TEXT = "TEXT: /(.|\\n)*/"
"""Any text; a lazy rule that begins with it ends at the first trigger, which free text can therefore not go past."""


def tag_grammar(tag: str | Mapping[str, Any], param: str) -> str:
    """The grammar of a structural tag, given as an object or as its text; raises Rejected, naming the part."""
    said = _read(tag, param)
    if not isinstance(said, Mapping):
        raise _refusal(param, "is not a JSON object")
    grammar = _Grammar()
    if "structures" in said:
        parts = _list(said, "structures", param)
        tags = [
            {
                "begin": part.get("begin"),
                "content": {"type": "json_schema", "json_schema": part.get("schema")},
                "end": part.get("end"),
            }
            for part in parts
        ]
        start = grammar.triggered({"triggers": said.get("triggers"), "tags": tags}, param)
    else:
        start = grammar.part(said.get("format"), f"{param}.format", is_last=True)
    return "\n".join([f"start: {start}", *grammar.rules])


class _Grammar:
    """Rules while they are made. Each method returns the expression that stands for its part."""

    def __init__(self) -> None:
        self.rules: list[str] = [TEXT]

    def part(self, part: Any, param: str, *, is_last: bool = False) -> str:
        kinds: dict[str, Callable[[Mapping[str, Any], str], str]] = {
            "const_string": lambda part, param: json.dumps(_text(part, "value", param)),
            "json_schema": self._schema,
            "or": self._either,
            "regex": self._regex,
            "sequence": lambda part, param: self._sequence(part, param, is_last=is_last),
            "tag": self._tag,
        }
        if is_last:  # what may go on as it likes can only come last
            kinds |= {"any_text": lambda part, param: "TEXT", "triggered_tags": self.triggered}
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise _refusal(f"{param}.type", f"must be one of {', '.join(sorted(kinds))} here")
        return kinds[kind](part, param)

    def triggered(self, part: Mapping[str, Any], param: str) -> str:
        """Text, and tags that begin with a trigger: once one was said, one of its tags must follow."""
        triggers, tags = part.get("triggers"), _list(part, "tags", param)
        if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
            raise _refusal(f"{param}.triggers", "must be a list of texts, none of them empty")
        if len(triggers) > MAX_TRIGGERS:
            raise _refusal(f"{param}.triggers", f"holds {len(triggers)} texts; at most {MAX_TRIGGERS} are taken")
        groups: dict[str, list[str]] = {}
        for i, tag in enumerate(tags):
            begin = _text(tag, "begin", f"{param}.tags[{i}]")
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                raise _refusal(f"{param}.tags[{i}].begin", "begins with none of the triggers")
            groups.setdefault(trigger, []).append(self._tag(tag, f"{param}.tags[{i}]", skipped=len(trigger)))
        names = []
        for trigger, bodies in groups.items():
            names.append(self._rule(f"[lazy]: TEXT {json.dumps(trigger)}") + f" ({' | '.join(bodies)})")
        one = f"({' | '.join(names)})"
        if part.get("stop_after_first"):
            return one if part.get("at_least_one") else f"({one} | TEXT)"
        return f"{one}{'+' if part.get('at_least_one') else '*'} TEXT"

    def _tag(self, part: Mapping[str, Any], param: str, skipped: int = 0) -> str:
        begin, end = _text(part, "begin", param)[skipped:], _text(part, "end", param)
        content = self.part(part.get("content"), f"{param}.content")
        return " ".join(piece for piece in (begin and json.dumps(begin), content, end and json.dumps(end)) if piece)

    def _schema(self, part: Mapping[str, Any], param: str) -> str:
        schema = part.get("json_schema")
        if not isinstance(schema, Mapping):
            raise _refusal(f"{param}.json_schema", "must be an object")
        return self._rule(f": %json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': ANY_WHITESPACE}})}")

    def _regex(self, part: Mapping[str, Any], param: str) -> str:
        # A slash would end the expression in the grammar; one behind a backslash of its own does not.
        pattern = re.sub(
            r"\\.|/", lambda m: "\\/" if m[0] == "/" else m[0], _text(part, "pattern", param), flags=re.DOTALL
        )
        self.rules.append(f"R{len(self.rules)}: /{pattern}/")
        return f"R{len(self.rules) - 1}"

    def _either(self, part: Mapping[str, Any], param: str) -> str:
        elements = _list(part, "elements", param)
        return f"({' | '.join(self.part(e, f'{param}.elements[{i}]') for i, e in enumerate(elements))})"

    def _sequence(self, part: Mapping[str, Any], param: str, *, is_last: bool) -> str:
        elements = _list(part, "elements", param)
        last = len(elements) - 1
        return " ".join(
            self.part(e, f"{param}.elements[{i}]", is_last=is_last and i == last) for i, e in enumerate(elements)
        )

    def _rule(self, rest: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(name + rest)
        return name


def _read(tag: str | Mapping[str, Any], param: str) -> Any:
    """What the tag says, bounded in size and depth: the work on it is done where everybody's requests are read."""
    if not isinstance(tag, str):
        check_depth(tag, param)
    text = tag if isinstance(tag, str) else json.dumps(tag, ensure_ascii=False)
    if len(text) > MAX_GRAMMAR_CHARS:
        raise _refusal(param, f"is {len(text)} characters long; at most {MAX_GRAMMAR_CHARS} are taken")
    if not isinstance(tag, str):
        return tag
    try:
        said = json.loads(text)
    except RecursionError:
        raise too_deep(param) from None
    except ValueError:
        return None
    check_depth(said, param)
    return said


def _list(part: Mapping[str, Any], field: str, param: str) -> list[Mapping[str, Any]]:
    value = part.get(field)
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        raise _refusal(f"{param}.{field}", "must be a list of objects, at least one")
    return value


def _text(part: Mapping[str, Any], field: str, param: str) -> str:
    value = part.get(field)
    if not isinstance(value, str):
        raise _refusal(f"{param}.{field}", "must be text")
    return value


def _refusal(param: str, words: str) -> Rejected:
    return Rejected(f"{param} {words}", param=param, code="invalid_value")

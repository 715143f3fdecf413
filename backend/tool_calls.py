"""Tool calls as text: which form a model's chat template asks for, a grammar that forces it, and how it is read.

Three forms are known: Hermes' and Qwen's `<tool_call>{…}</tool_call>`, Llama 3's bare JSON, and Mistral's
`[TOOL_CALLS][{…}]`. Knows nothing of HTTP or of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from backend.structured import ANY_WHITESPACE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_CALLS = 16
"""So many calls may one forced answer make."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One form of calls. `begin` comes before, `end` after each (or all, between brackets, if `is_list`).

    A call without `begin` starts with the answer itself. `arguments_key` is what the form calls the arguments;
    `control_ids` are the ids of marks that the tokenizer has as control tokens, and their texts.
    """

    begin: str
    end: str
    arguments_key: str
    is_list: bool = False
    separator: str = ""
    id_len: int = 24
    control_ids: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def spoken(self) -> dict[int, str]:
        """Control tokens whose text matters here: id -> text."""
        return {token_id: text for text, token_id in self.control_ids.items()}

    def grammar(self, functions: Sequence[tuple[str, Mapping[str, Any]]], *, parallel: bool) -> str:
        """A Lark grammar for at least one call of `functions` (name, JSON schema of its arguments)."""
        rules = []
        for index, (name, schema) in enumerate(functions):
            head = f'{{"name": {json.dumps(name)}, "{self.arguments_key}": '
            options = {"x-guidance": {"whitespace_pattern": ANY_WHITESPACE}}
            rules.append(f'f{index}: {json.dumps(head)} a{index} "}}"')
            rules.append(f"a{index}: %json {json.dumps({**schema, **options})}")
        rules.append("call: " + " | ".join(f"f{index}" for index in range(len(functions))))
        begin, end = self._literal(self.begin), self._literal(self.end)
        one = "marked" if self.begin and not self.is_list else "call"
        separator = json.dumps(self.separator)
        calls = f"{one} ({separator} {one}){{0,{MAX_CALLS - 1}}}" if parallel else one
        if self.is_list:
            rules.append(f'start: {begin} "[" {calls} "]"')
        else:
            rules.append(f"start: {calls}")
        if one == "marked":
            rules.append(f'marked: {begin} "\\n" call "\\n" {end}')
        return "\n".join(rules)

    def _literal(self, text: str) -> str:
        return f"<[{self.control_ids[text]}]>" if text in self.control_ids else json.dumps(text)


HERMES = ToolFormat("<tool_call>", "</tool_call>", "arguments", separator="\n")
LLAMA3 = ToolFormat("", "", "parameters", separator="; ")
MISTRAL = ToolFormat("[TOOL_CALLS]", "", "arguments", is_list=True, separator=", ", id_len=9)

PYTHON_TAG = "<|python_tag|>"
"""What Llama 3 may write before a call."""

_MARKS = {HERMES: ("<tool_call>", "</tool_call>"), LLAMA3: (PYTHON_TAG,), MISTRAL: ("[TOOL_CALLS]",)}


def find_format(template: Any, tokenizer: PreTrainedTokenizerBase) -> ToolFormat | None:
    """The form that a chat template teaches; None where it teaches none, or one that is not known here."""
    text = template.get("tool_use", "") if isinstance(template, dict) else template or ""
    if "tools" not in text or "<function=" in text or "[ARGS]" in text:
        return None
    if "<tool_call>" in text:
        known = HERMES
    elif "[TOOL_CALLS]" in text:
        known = MISTRAL
    elif '"parameters"' in text and "tool_calls" in text:
        known = LLAMA3
    else:
        return None
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    control_ids = {mark: special[mark] for mark in _MARKS[known] if mark in special}
    return replace(known, control_ids=control_ids)

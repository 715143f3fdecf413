"""Prompt text -> token ids, with one rule: what stands in a message is text, even where it spells a control token.

A prompt without such spellings is tokenized as it is, exactly as HF would. Where a message holds one, a mark takes its
place until the chat template has run; then the text between marks is tokenized as always, the spelling as plain text.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from backend.models.adapter import Message


class PromptText:
    """Marks and tokenizes for one tokenizer. Thread-safe.

    A tokenizer that is not a fast one cannot be told to read control tokens as text: for it nothing is marked.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # A copy: whether control tokens are read is a state of the tokenizer, and threads share the original.
        self._plain: Any = copy.deepcopy(getattr(tokenizer, "backend_tokenizer", None))
        spellings = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        if self._plain is None:
            spellings = []
        else:
            self._plain.encode_special_tokens = True
        # A private-use character, and enough chance that no message holds the same by accident or on purpose.
        self._marks = {text: f"\ue000{secrets.token_hex(8)}\ue001" for text in sorted(spellings, key=len, reverse=True)}
        self._spellings = {mark: text for text, mark in self._marks.items()}

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with a mark in place of every control token that their texts spell."""
        return [
            {**m, **{key: self._mark_content(m[key]) if key == "content" else self.mark_all(m[key]) for key in texts}}
            for m, texts in ((m, [key for key in ("content", "tool_calls") if key in m]) for m in messages)
        ]

    def mark_all(self, value: Any) -> Any:
        """The same for every text, keys included, in JSON such as the description of a function."""
        if isinstance(value, str):
            return _replace(self._marks, value)
        if isinstance(value, Mapping):
            return {self.mark_all(key): self.mark_all(item) for key, item in value.items()}
        return [self.mark_all(item) for item in value] if isinstance(value, list | tuple) else value

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Token ids of a prompt rendered from marked messages; nothing is added."""
        token_ids: list[int] = []
        for piece in _split(self._spellings, prompt):
            if piece in self._spellings:
                token_ids += self._plain.encode(self._spellings[piece], add_special_tokens=False).ids
            elif piece:
                token_ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return tuple(token_ids)

    def _mark_content(self, content: Any) -> Any:
        if isinstance(content, str):
            return _replace(self._marks, content)
        return [
            {**p, "text": _replace(self._marks, p["text"])} if p["type"] == "text" else p for p in content or []
        ] or content


def _replace(by: Mapping[str, str], text: str) -> str:
    return "".join(by.get(piece, piece) for piece in _split(by, text))


def _split(words: Mapping[str, str], text: str) -> list[str]:
    """`text` in pieces, each of which is one of `words` or holds none; the first of several that fit is taken."""
    return re.split(f"({'|'.join(map(re.escape, words))})", text) if words else [text]

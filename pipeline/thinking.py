"""What a model thinks aloud before it answers (`<think>…</think>`), told apart from the answer while it streams in."""

from __future__ import annotations

BEGIN, END = "<think>", "</think>"


class Spoken:
    """Passes on an answer without the thoughts at its beginning. Feed it all pieces, then ask for the `rest`.

    A template may have begun the thoughts in the prompt: then only their end tells, and `without_thoughts` knows.
    """

    def __init__(self) -> None:
        self._held: str | None = ""  # what may be a thought, or its beginning; None once words came

    def take(self, piece: str) -> str:
        """The words of the answer that are certain with this piece."""
        if self._held is None:
            return piece
        self._held = (self._held + piece).lstrip()
        if self._held.startswith(BEGIN):
            _, end, words = self._held.partition(END)
            if not end or not words.strip():
                return ""
        elif BEGIN.startswith(self._held):
            return ""
        else:
            words = self._held
        self._held = None
        return words.lstrip()

    @property
    def rest(self) -> str:
        """What is held back at the end and was no thought."""
        return "" if self._held is None or self._held.startswith(BEGIN) else self._held


def without_thoughts(text: str) -> str:
    """A whole answer without its thoughts; nothing, if it never came to an end with them."""
    if END in text:
        return text.rpartition(END)[2].strip()
    return "" if text.lstrip().startswith(BEGIN) else text

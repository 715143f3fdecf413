"""From token ids to text, one at a time: characters that span tokens, and stop strings that span pieces.

Pure string work over a `tokenizers.Tokenizer`; knows nothing of requests, the engine or asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns one answer's token ids into text pieces whose concatenation is the decoded answer. Not thread-safe.

    Special tokens give no text. Half a character is held back until its other tokens come.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._text = ""

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, often one word, possibly none."""
        self._token_ids.append(token_id)
        piece = self._stream.step(self._tokenizer, token_id) or ""
        self._text += piece
        return piece

    def flush(self) -> str:
        """What is still held back when the answer ends: half a character comes out as U+FFFD."""
        whole = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)
        tail = whole[len(self._text) :] if whole.startswith(self._text) else ""
        self._text += tail
        return tail


class StopStrings:
    """Lets text through up to the first stop string, which may begin in one piece and end in a later one.

    Text that could be the beginning of a stop string is held back until it is known not to be one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False
        """Whether a stop string was met; nothing more comes out after it."""

    def push(self, piece: str) -> str:
        """The part of all text so far that is certain and was not given out before."""
        if self.hit:
            return ""
        text = self._held + piece
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self.hit, self._held = True, ""
            return text[: min(starts)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What is held back when the answer ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)

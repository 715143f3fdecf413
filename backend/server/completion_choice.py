"""One choice of a text completion while it is told: its words, and its tokens with their log-probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from openai.types.completion_choice import Logprobs

from backend.structured import Vocabulary
from backend.types.result import TokenLogprobs


class _Token(NamedTuple):
    """Where a token begins in the text, its name, and what the model thought of it; nothing of a prompt's first."""

    offset: int
    name: str
    logprob: float | None
    likeliest: dict[str, float] | None


class ToldChoice:
    """Collects the pieces of one choice. `text` is all so far, the prompt included where it is echoed.

    `vocabulary` is None where no log-probabilities are asked for.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.text = ""
        self._vocabulary = vocabulary
        self._tokens: list[_Token] = []
        self._num_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def echo(self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Logprobs | None:
        """Begin with the prompt, `logprobs` of all its tokens but the first; returns what a stream tells of them."""
        self.text = text
        if self._vocabulary is None:
            return None
        first = _name(token_ids[0], self._vocabulary)
        self._tokens.append(_Token(0, first, None, None))
        # A tokenizer may have put a token of its own before the text.
        self._num_chars = len(first) if text.startswith(first) else 0
        self._tokens += [self._read(token, self._vocabulary) for token in logprobs]
        self._num_chars = len(text)
        return _packed(self._tokens)

    def push(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Logprobs | None:
        """Take a piece; returns what a stream tells of its tokens."""
        self.text += text
        if self._vocabulary is None or not logprobs:
            return None
        latest = [self._read(token, self._vocabulary) for token in logprobs]
        self._tokens += latest
        return _packed(latest)

    def logprobs(self) -> Logprobs | None:
        """All tokens, if they were asked for."""
        return None if self._vocabulary is None else _packed(self._tokens)

    def _read(self, token: TokenLogprobs, vocabulary: Vocabulary) -> _Token:
        offset, name = self._num_chars, _name(token.token_id, vocabulary)
        self._num_chars += len(self._decoder.decode(vocabulary.bytes_of(token.token_id)))
        likeliest = {_name(token_id, vocabulary): logprob for token_id, logprob in token.top}
        return _Token(offset, name, token.logprob, likeliest | {name: token.logprob})


def _packed(tokens: Sequence[_Token]) -> Logprobs:
    # The client's type does not foresee a first token without a value, which the API has.
    return Logprobs.model_construct(
        text_offset=[token.offset for token in tokens],
        tokens=[token.name for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[token.likeliest for token in tokens],
    )


def _name(token_id: int, vocabulary: Vocabulary) -> str:
    """A token as this API names it: its text, or its bytes where these are no whole characters."""
    raw = vocabulary.bytes_of(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

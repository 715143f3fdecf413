"""Log-probabilities in the OpenAI API's words: tokens as text and as bytes. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_token_logprob import TopLogprob

from backend.structured import Vocabulary
from backend.types.result import TokenLogprobs


def told_logprobs(logprobs: Sequence[TokenLogprobs], vocabulary: Vocabulary) -> list[ChatCompletionTokenLogprob]:
    """One entry a token. Half a character is U+FFFD as text, and itself as bytes."""
    return [
        ChatCompletionTokenLogprob(
            token=_text(token.token_id, vocabulary),
            logprob=token.logprob,
            bytes=list(vocabulary.bytes_of(token.token_id)),
            top_logprobs=[
                TopLogprob(token=_text(i, vocabulary), logprob=p, bytes=list(vocabulary.bytes_of(i)))
                for i, p in token.top
            ],
        )
        for token in logprobs
    ]


def _text(token_id: int, vocabulary: Vocabulary) -> str:
    return vocabulary.bytes_of(token_id).decode(errors="replace")

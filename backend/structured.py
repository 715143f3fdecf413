"""Structured output: from what a client demands of an answer to a grammar that the sampler asks token by token.

Grammars are compiled by llguidance on a thread of its own, never on the event loop or the engine thread, bounded in
size and work. `TokenGrammar` is what reaches the engine. Knows nothing of HTTP, requests or logits.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import llguidance.hf
from llguidance import LLMatcher, LLTokenizer, grammar_from

from backend.conversation import Constraint
from backend.errors import Cancelled, Rejected, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

MAX_GRAMMAR_CHARS = 1 << 18
"""So long may a schema, an expression or a grammar be."""

MAX_COMPILE_S = 10.0
"""So long may a grammar take to compile. llguidance bounds its own work far below; this bounds the wait for it."""

MAX_GRAMMARS_KEPT = 32
"""Compiled grammars that are kept for the next request with the same one."""

ANY_WHITESPACE = r"[ \n]{1,8}"
"""Between the parts of JSON. Bounded, or a small model may go on with blanks for as long as it is let."""

_MAX_REASON_LEN = 300


class Vocabulary:
    """A tokenizer as llguidance sees it: every token as bytes. Built when first asked for: up to a second."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Iterable[int]) -> None:
        self._source = tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def load(self) -> LLTokenizer:
        """The tokenizer. Blocks while it is built; raises Rejected for one that llguidance cannot read."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._build()
            return self._tokenizer

    def bytes_of(self, token_id: int) -> bytes:
        """What one token adds to the answer; empty for an id that is no token. `load` must have returned before."""
        tokenizer = self._tokenizer
        assert tokenizer is not None, "not loaded"
        return tokenizer.decode_bytes([token_id]) if token_id < tokenizer.vocab_size else b""

    def _build(self) -> LLTokenizer:
        eos = [i for i in self._eos_token_ids if i < len(self._source)]
        try:
            if not eos:
                raise ValueError("it has no token that ends an answer")
            return llguidance.hf.from_tokenizer(self._source, eos_token=eos)  # type: ignore[arg-type]
        except Exception as error:  # foreign code on a checkpoint's tokenizer: no grammar then, but everything else
            raise Rejected(
                f"this model's tokenizer allows neither structured output nor log-probabilities: {_reason(error)}",
                param="model",
                code="unsupported_tokenizer",
            ) from error


class TokenGrammar:
    """A `Grammar` by llguidance, one request's alone. Rebuilds its state wherever a history departs."""

    def __init__(self, compiled: LLMatcher) -> None:
        self._compiled = compiled
        self._matcher = compiled.deep_copy()
        self._consumed: tuple[int, ...] = ()

    def fork(self) -> TokenGrammar:
        """The same grammar for another request, at its beginning."""
        return TokenGrammar(self._compiled)

    def mask(self, history: tuple[int, ...]) -> bytes:
        """See `Grammar.mask`; raises ValueError."""
        num_known = len(self._consumed)
        if history[:num_known] != self._consumed:
            self._matcher, num_known = self._compiled.deep_copy(), 0
        self._consumed = history
        if history[num_known:]:
            self._matcher.consume_tokens(list(history[num_known:]))
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        return mask


class GrammarCompiler:
    """Compiles constraints for one vocabulary, and keeps the latest. `close` ends its thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._kept: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._closed = False

    async def load(self) -> None:
        """Make the vocabulary ready; raises Rejected for a tokenizer that cannot be read."""
        await self._run(self._vocabulary.load)

    async def compile(self, constraint: Constraint) -> TokenGrammar:
        """A grammar for one request; raises Rejected, naming the field and the reason, for what cannot be one."""
        if len(constraint.text) > MAX_GRAMMAR_CHARS:
            raise Rejected(
                f"{constraint.param} is {len(constraint.text)} characters long; at most {MAX_GRAMMAR_CHARS} are taken",
                param=constraint.param,
                code="invalid_value",
            )
        kept = self._kept.get(constraint)
        if kept is None:
            try:
                kept = await asyncio.wait_for(self._run(lambda: self._compile(constraint)), MAX_COMPILE_S)
            except TimeoutError:
                raise Rejected(
                    f"{constraint.param}: it takes longer than {MAX_COMPILE_S:g} s to compile; simplify it",
                    param=constraint.param,
                    code="grammar_too_complex",
                ) from None
        self._kept[constraint] = kept
        self._kept.move_to_end(constraint)
        if len(self._kept) > MAX_GRAMMARS_KEPT:
            self._kept.popitem(last=False)
        return TokenGrammar(kept)

    def close(self) -> None:
        """End the thread; what has not begun is dropped."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise Cancelled("the server is stopping")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            if self._closed:
                raise Cancelled("the server is stopping") from None
            raise

    def _compile(self, constraint: Constraint) -> LLMatcher:
        tokenizer = self._vocabulary.load()
        try:
            matcher = LLMatcher(tokenizer, _grammar_of(constraint), log_level=0)
        except Exception as error:  # foreign code on a client's text
            raise _refusal(constraint, _reason(error)) from error
        # One mask on a copy: what only fails at the first token is refused here, too.
        trial = matcher.deep_copy()
        if not trial.is_error():
            trial.compute_bitmask()
        if trial.is_error():
            raise _refusal(constraint, _reason(ValueError(trial.get_error())))
        return matcher


def _grammar_of(constraint: Constraint) -> str:
    """The constraint in llguidance's own form."""
    text, kind = constraint.text, constraint.kind
    if kind == "choice":
        kind, text = "grammar", "start: " + " | ".join(json.dumps(choice) for choice in json.loads(text))
    if kind == "lark":
        return LLMatcher.grammar_from_lark(text)
    if kind != "json_schema":
        return grammar_from(kind, text)
    if constraint.whitespace == "":
        return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
    pattern = constraint.whitespace or ANY_WHITESPACE
    return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": pattern})


def _refusal(constraint: Constraint, reason: str) -> Rejected:
    return Rejected(f"{constraint.param}: {reason}", param=constraint.param, code="invalid_value")


def _reason(error: Exception) -> str:
    """The first line of what llguidance says: the rest shows its state."""
    return one_line(error)[:_MAX_REASON_LEN]

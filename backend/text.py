"""From a token stream back to text: `Answer` reads one request's tokens and owns its end, string stops included.

Knows nothing of HTTP or of how the request was made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from tokenizers import Tokenizer

from backend.detokenize import Detokenizer, StopStrings
from backend.engine import Engine
from backend.errors import Cancelled, EngineError
from backend.types.request import Request
from backend.types.result import FinishReason, TokenEvent, TokenLogprobs


class Answer:
    """One request's answer as text: submitted on construction, cancelled by `close` unless it has ended by then.

    Whoever makes an Answer closes it on every path. `num_tokens` and `finish_reason` are final when `pieces` ends;
    `num_cached_tokens`, what the prefix cache had of the prompt, when the first piece comes.
    `prompt_logprobs` are of the prompt's tokens but the first, all there with the first token, if they were asked for.
    Control tokens give no text, but for those in `spoken`, which maps their ids to it.
    """

    def __init__(
        self, engine: Engine, request: Request, tokenizer: Tokenizer, spoken: Mapping[int, str] | None = None
    ) -> None:
        self.request = request
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._spoken = spoken or {}
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._logprobs: list[TokenLogprobs] = []
        self._engine = engine
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(request.sampling.stop)
        self._stream = engine.submit(request)
        self._in_engine = True

    async def admitted(self) -> None:
        """Wait until the engine has taken the request; raises its refusal."""
        try:
            await self._stream.admitted()
        except EngineError:
            self._in_engine = False
            raise

    async def pieces(self) -> AsyncIterator[str]:
        """The text as it comes; raises EngineError when the answer cannot be finished.

        A piece is empty only where it comes with log-probabilities, which `take_logprobs` then has.
        """
        while self.finish_reason is None:
            try:
                events = await self._stream.take()
            except EngineError:
                self._in_engine = False
                raise
            piece = "".join(self._read(event) for event in events)
            if piece or self._logprobs:
                yield piece

    def take_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """The log-probabilities of the tokens since the last call, if the request asked for any."""
        taken = tuple(self._logprobs)
        self._logprobs.clear()
        return taken

    def close(self) -> None:
        """Cancel the request in the engine unless it has ended. Idempotent."""
        if self._in_engine:
            self._in_engine = False
            self._engine.cancel(self.request.request_id)

    def _read(self, event: TokenEvent) -> str:
        if self.finish_reason is not None:
            return ""
        piece = ""
        if event.num_cached_tokens is not None:
            self.num_cached_tokens = event.num_cached_tokens
        if event.prompt_logprobs is not None:  # a prompt that is computed again is told again
            self.prompt_logprobs[event.prompt_logprobs.start - 1 :] = event.prompt_logprobs.tokens
        if event.token_id is not None:
            self.num_tokens += 1
            text = self._detokenizer.push(event.token_id) + self._spoken.get(event.token_id, "")
            piece = self._stops.push(text)
            if event.logprobs is not None:
                self._logprobs.append(event.logprobs)
        if event.finish_reason is not None:
            self._in_engine = False
            if event.finish_reason is FinishReason.ERROR:
                raise EngineError(event.error or "the request failed")
            if event.finish_reason is FinishReason.CANCELLED:
                raise Cancelled("the request was cancelled")
            self.finish_reason = event.finish_reason
            piece += self._stops.push(self._detokenizer.flush())
            piece += self._stops.flush()
        if self._stops.hit:
            self.finish_reason = FinishReason.STOP
            self.close()
        return piece

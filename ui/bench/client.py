"""Asks as a person in a chat, a camera with a frame, or somebody with a long document: gives requests their words.

Knows nothing of loads, phases and statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ui.bench.endpoint import AskError, Endpoint
from ui.bench.frames import FrameSource
from ui.bench.lengths import Lengths, Wording
from ui.bench.recorder import Kind, Recording
from ui.errors import UsageError

CALIBRATION_WORDS = 100
WARM_UP_TOKENS = 4
QUESTION = "Tell a long story about a lighthouse keeper."
FRAME_QUESTION = "Describe the people in this frame."
BACKGROUND = {"X-Request-Class": "background"}
"""What the product's cameras send; other servers ignore it."""

FramesFor = Callable[[str], FrameSource]
"""Gives the frames of one camera by its seed."""


@dataclass(slots=True)
class Client:
    """Asks one endpoint. What it sends follows from the seeds it is given, but for `salt`, which no cache has seen."""

    endpoint: Endpoint
    salt: str
    caption_tokens: int = 24
    wording: Wording = field(default_factory=Wording)
    _asked: int = 0

    async def warm_up(self, frames: FrameSource | None) -> None:
        """A first request of each kind that will follow, and what a word costs in tokens.

        Raises `UsageError` where the server refuses.
        """
        bare, filled = _recording(Kind.CHAT), _recording(Kind.CHAT)
        try:
            await self._say_words("", WARM_UP_TOKENS, bare)
            await self._say_words(Wording(1.0, 0).fill(CALIBRATION_WORDS, Random(0)), WARM_UP_TOKENS, filled)
        except AskError as error:
            raise UsageError(f"{self.endpoint.name} does not answer a chat: {error}") from None
        if bare.prompt_tokens and filled.prompt_tokens and filled.prompt_tokens > bare.prompt_tokens:
            per_word = (filled.prompt_tokens - bare.prompt_tokens) / CALIBRATION_WORDS
            self.wording = Wording(per_word, bare.prompt_tokens)
        if frames is not None:
            try:
                await self.caption(frames, _recording(Kind.CAMERA))
            except AskError as error:
                raise UsageError(f"{self.endpoint.name} does not describe a picture: {error}") from None

    async def settle(self) -> None:
        """Wait until the server has dealt with whatever was cut off: until it answers one more word."""
        try:
            await self._say_words("", 1, _recording(Kind.CHAT))
        except AskError:
            return  # the next phase will find out

    async def talk(self, lengths: Lengths, rng: Random, recording: Recording) -> Recording:
        """One question of those lengths, a chat's or a document's; raises `AskError`."""
        lengths = self.wording.at_least(lengths).within(self.endpoint.max_model_len)
        recording.prompt_tokens = lengths.prompt  # as meant, until the server gives its own count at the end
        return await self._say_words(self.wording.fill(lengths.prompt, rng), lengths.answer, recording)

    async def caption(self, frames: FrameSource, recording: Recording) -> Recording:
        """One frame; raises `AskError`."""
        url = await asyncio.to_thread(frames.next)  # making a JPEG would hold up the clock of the chats
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": FRAME_QUESTION}]
        return await self._ask(parts, self.caption_tokens, recording, BACKGROUND)

    async def _say_words(self, words: str, max_tokens: int, recording: Recording) -> Recording:
        self._asked += 1  # the number comes first, so that no two prompts share a beginning
        return await self._ask(f"{self.salt}-{self._asked} {words} {QUESTION}", max_tokens, recording)

    async def _ask(
        self,
        content: str | Sequence[Mapping[str, Any]],
        max_tokens: int,
        recording: Recording,
        headers: Mapping[str, str] | None = None,
    ) -> Recording:
        recording.t_sent = time.monotonic()
        return await self.endpoint.ask([{"role": "user", "content": content}], max_tokens, recording, headers=headers)


def _recording(kind: Kind) -> Recording:
    return Recording(kind, 0, time.monotonic())

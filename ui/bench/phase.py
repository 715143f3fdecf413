"""Puts one phase's load onto a server and keeps what comes back.

Knows nothing of words, statistics and output. Whatever was recorded stays when a phase is cancelled or the server is
lost.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

from ui.bench.client import Client, FramesFor
from ui.bench.engine import EngineStep
from ui.bench.frames import FrameSource
from ui.bench.lengths import Lengths
from ui.bench.load import closed_loop, open_loop, poisson
from ui.bench.recorder import Kind, Recording
from ui.bench.scenario import Phase

LEAD_S = 1.0
"""Cameras begin this long before the chats, one after another."""


@dataclass(slots=True)
class Measured:
    """What one phase of one run gave: every request, our engine's steps, and the window that counts."""

    phase: Phase
    run: int
    t_begin: float | None = None
    t_end: float | None = None
    recordings: list[Recording] = field(default_factory=list)
    steps: list[EngineStep] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """It ran to its end."""
        return self.t_end is not None

    def tokens_of(self, chat: int) -> int:
        """Tokens that one chat has so far."""
        return sum(rec.num_tokens for rec in self.recordings if rec.kind is Kind.CHAT and rec.stream == chat)

    def progress(self, now: float) -> float:
        """How much of the phase is done, 0 to 1."""
        phase, begun = self.phase, self.t_begin
        by_time = (now - begun) / phase.duration_s if phase.duration_s and begun else 0.0
        wanted = (phase.tokens or 0) * phase.chats
        by_tokens = sum(map(self.tokens_of, range(phase.chats))) / wanted if wanted else 0.0
        return min(1.0, max(by_time, by_tokens))


async def run_phase(measured: Measured, client: Client, frames_for: FramesFor, seed: str) -> None:
    """Run `measured.phase` to its end, filling `measured`. Captions that are on their way then are waited for.

    Raises `EndpointLost`. Cancelling cuts everything off; `measured` keeps what there was.
    """
    phase = measured.phase
    ended = asyncio.Event()
    cameras = [
        asyncio.create_task(_camera(number, measured, client, frames_for(f"{seed}/{number}"), ended))
        for number in range(phase.cameras)
    ]
    others: list[asyncio.Task[None]] = []
    try:
        if cameras:
            await _first_failure(cameras, LEAD_S)
        measured.t_begin = time.monotonic()
        if phase.rate:
            others.append(asyncio.create_task(_documents(measured, client, seed)))
        chats = [asyncio.create_task(_chat(number, measured, client, seed)) for number in range(phase.chats)]
        others += chats
        await _until_done(phase, chats, [*cameras, *others])
        measured.t_end = time.monotonic()
        ended.set()
        await _cut(others)
        await asyncio.gather(*cameras)
    finally:
        await _cut([*cameras, *others])


async def _until_done(phase: Phase, chats: list[asyncio.Task[None]], everyone: list[asyncio.Task[None]]) -> None:
    """Wait for the chats or the time; raises what any task failed of."""
    pending = set(everyone)
    deadline = None if phase.duration_s is None else time.monotonic() + phase.duration_s
    while not chats or not all(chat.done() for chat in chats):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if left is not None and not done:
            return


async def _first_failure(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def _cut(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _chat(number: int, measured: Measured, client: Client, seed: str) -> None:
    """One person who asks until all tokens are there."""
    phase, rng = measured.phase, Random(f"{seed}/chat/{number}")

    def left() -> int:
        return 1 if phase.tokens is None else phase.tokens - measured.tokens_of(number)

    async def ask(_: int) -> Recording:
        lengths = phase.chat_lengths.draw(rng)
        if phase.tokens is not None:
            lengths = Lengths(lengths.prompt, min(lengths.answer, left()))
        return await client.talk(lengths, rng, _begin(measured, Kind.CHAT, number))

    await closed_loop(ask, lambda: left() > 0)


async def _camera(number: int, measured: Measured, client: Client, frames: FrameSource, ended: asyncio.Event) -> None:
    """One camera whose next frame follows the last caption."""
    await asyncio.sleep(LEAD_S * number / max(1, measured.phase.cameras))

    async def ask(_: int) -> Recording:
        return await client.caption(frames, _begin(measured, Kind.CAMERA, number))

    await closed_loop(ask, lambda: not ended.is_set())


async def _documents(measured: Measured, client: Client, seed: str) -> None:
    """Long prompts that arrive whether or not the earlier ones were answered."""
    phase = measured.phase

    async def ask(number: int) -> Recording:
        rng = Random(f"{seed}/document/{number}")
        return await client.talk(phase.document_lengths.draw(rng), rng, _begin(measured, Kind.DOCUMENT, number))

    await open_loop(ask, poisson(phase.rate, Random(f"{seed}/arrivals")))


def _begin(measured: Measured, kind: Kind, stream: int) -> Recording:
    recording = Recording(kind, stream, time.monotonic())
    measured.recordings.append(recording)
    return recording

"""What is measured: scenarios as data, each a list of phases with their chats, cameras and documents.

Knows neither servers nor clocks. The first phase without cameras and documents is the quiet one that others of as many
chats are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Protocol

from ui.bench.lengths import MIXES, Lengths

CAMERA_DURATION_S = 30.0
RAG_DURATION_S = 60.0
DEFAULT_TOKENS = 512
"""Per chat: two chats have more than a thousand gaps."""
PREFILL_PROMPT = 256
PREFILL_ANSWER = 4
"""More than one token, for the first may have no letters."""
PREFILL_TOKENS = 16 * PREFILL_ANSWER


class Scenario(StrEnum):
    """The scenarios by name."""

    CHAT = "chat"
    CAMERA = "camera"
    CHAT_UNDER_CAMERA = "chat-under-camera"
    RAG = "rag"
    PREFILL = "prefill"


class Drawn(Protocol):
    """What gives the lengths of a request."""

    def draw(self, rng: Random) -> Lengths:
        """Those of the next one."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same lengths."""

    lengths: Lengths

    def draw(self, rng: Random) -> Lengths:
        """See `Drawn`."""
        return self.lengths


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of steady load. It ends when every chat has its tokens or the time is up, whichever comes first."""

    name: str
    chats: int = 0
    cameras: int = 0
    rate: float = 0.0
    """Long documents per second, arriving open-loop."""
    tokens: int | None = None
    """What each chat is to get, over as many answers as it takes."""
    duration_s: float | None = None
    chat_lengths: Drawn = MIXES["chat"]
    document_lengths: Drawn = MIXES["rag"]

    @property
    def is_quiet(self) -> bool:
        """Only chats."""
        return self.chats > 0 and self.cameras == 0 and self.rate == 0


@dataclass(frozen=True, slots=True)
class Load:
    """What a person chose; None leaves it to the scenario."""

    chats: Sequence[int] = (2,)
    cameras: Sequence[int] = (1,)
    rate: float = 0.25
    mix: str = "rag"
    tokens: int | None = None
    duration_s: float | None = None


def phases_of(scenario: Scenario, load: Load) -> tuple[Phase, ...]:
    """The phases of one run, in order; phases of as many chats follow their quiet one."""
    match scenario:
        case Scenario.CAMERA:
            seconds = load.duration_s or CAMERA_DURATION_S
            return tuple(Phase(_count(n, "camera"), cameras=n, duration_s=seconds) for n in load.cameras)
        case Scenario.PREFILL:
            asked = Fixed(Lengths(PREFILL_PROMPT, PREFILL_ANSWER))
            tokens = load.tokens or PREFILL_TOKENS
            return tuple(
                Phase(_count(n, "prompt"), n, tokens=tokens, duration_s=load.duration_s, chat_lengths=asked)
                for n in load.chats
            )
    return tuple(phase for chats in load.chats for phase in _beside_chats(scenario, chats, load))


def _beside_chats(scenario: Scenario, chats: int, load: Load) -> list[Phase]:
    """A quiet phase of so many chats, and what the scenario puts beside them."""
    tokens = load.tokens or (None if load.duration_s else DEFAULT_TOKENS)
    if scenario is Scenario.CHAT:
        return [Phase(_count(chats, "chat"), chats, tokens=tokens, duration_s=load.duration_s)]
    prefix = f"{_count(chats, 'chat')}, " if len(load.chats) > 1 else ""
    if scenario is Scenario.RAG:
        # Arrivals need time, not tokens: a minute of them unless the person says otherwise.
        seconds = load.duration_s or (None if load.tokens else RAG_DURATION_S)
        quiet = Phase(f"{prefix}quiet", chats, tokens=load.tokens, duration_s=seconds)
        documents = Phase(
            f"{prefix}{load.rate:g} {load.mix}/s",
            chats,
            rate=load.rate,
            tokens=load.tokens,
            duration_s=seconds,
            document_lengths=MIXES[load.mix],
        )
        return [quiet, documents]
    # One long answer per chat: with the cameras away nothing but decoding happens.
    steady = Fixed(Lengths(40, load.tokens or DEFAULT_TOKENS))
    return [
        Phase(
            prefix + (_count(n, "camera") if n else "quiet"),
            chats,
            cameras=n,
            tokens=tokens,
            duration_s=load.duration_s,
            chat_lengths=steady,
        )
        for n in (0, *load.cameras)
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""What is said about captions, in words: the same on the feed, on an event's own page, and in the chat's references."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pipeline.events import EventStatus, Reason
from ui.web.board import MAX_CARDS, Card, CardState
from ui.words import REASONS, UNDESCRIBED

LONG_WAIT_S = 1.5
"""A picture that waited this long for the engine (because it started, or had others to describe) has it said."""

STATES: dict[CardState, tuple[str, str]] = {
    CardState.QUEUED: ("warn", "Waiting for the engine"),
    CardState.STREAMING: ("warn", "Describing"),
    CardState.FAILED: ("bad", UNDESCRIBED[EventStatus.FAILED].capitalize()),
    CardState.CANCELLED: ("idle", UNDESCRIBED[EventStatus.CANCELLED].capitalize()),
    CardState.SUPERSEDED: ("idle", UNDESCRIBED[EventStatus.SUPERSEDED].capitalize()),
}


def shown(card: Card) -> dict[str, Any]:
    """A card as the page's scripts take it: its state, and its words ready to be shown."""
    tone, word = STATES.get(card.state, ("", ""))
    return {
        "id": card.event_id,
        "camera": card.camera,
        "state": card.state,
        "is_final": card.state.is_final,
        "is_past": card.is_past,
        "why": REASONS[Reason(card.reason)].capitalize(),
        "when": time_of_day(card.t_wall),
        "iso": datetime.fromtimestamp(card.t_wall).astimezone().isoformat(),
        "text": card.text,
        "tone": tone,
        "word": word,
        "latency": latency(card),
        "detail": detail(card),
        "contradicts": card.contradicts,
        "zone": card.zone,
        "is_notable": card.is_notable,
    }


def summary(cards: Sequence[Card]) -> str:
    """What the cards below are, in a few words; those of earlier runs are not counted."""
    cards = [card for card in cards if not card.is_past]
    num_ok = sum(card.state is CardState.OK for card in cards)
    if not cards:
        return ""
    which = f"newest {len(cards)}" if len(cards) == MAX_CARDS else f"{len(cards)} since the start"
    return f"{which}, {num_ok} described"


def latency(card: Card) -> str:
    """The card's main number: how old the picture was when its caption was complete."""
    if card.state is CardState.OK and card.caption_s is not None:
        return f"{seconds(card.caption_s)} after the picture was taken"
    return ""


def detail(card: Card) -> str:
    """What stands beside the main number."""
    if card.state is CardState.FAILED:
        return card.error
    if card.state not in (CardState.OK, CardState.STREAMING) or card.first_token_s is None:
        return ""
    if card.waited_s is not None and card.waited_s >= LONG_WAIT_S:
        return f"{seconds(card.waited_s)} of it waiting for the engine"
    return f"first word after {seconds(card.first_token_s)}"


def seconds(duration_s: float) -> str:
    """A duration as people read it."""
    if duration_s < 1:
        return f"{1000 * duration_s:.0f} ms"
    return f"{duration_s:.1f} s" if duration_s < 60 else f"{duration_s / 60:.1f} min"


def time_of_day(t_wall: float) -> str:
    """Local time of day, with the date when it is not today's."""
    at = time.localtime(t_wall)
    today = time.localtime()[:3] == at[:3]
    return time.strftime("%H:%M:%S" if today else "%d %b %H:%M", at)

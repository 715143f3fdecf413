"""The feed of captions: the newest event first, each beside the picture it describes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from nicegui import ui

from pipeline.events import EventStatus, Reason
from ui.web.board import MAX_CARDS, Board, Card, CardState
from ui.web.elements import Text, box, set_attributes
from ui.words import REASONS, UNDESCRIBED

REFRESH_S = 0.15
LONG_WAIT_S = 1.5
"""A picture that waited this long for the engine (because it started, or had others to describe) has it said."""

STATES: dict[CardState, tuple[str, str]] = {
    CardState.QUEUED: ("warn", "Waiting for the engine"),
    CardState.STREAMING: ("warn", "Describing"),
    CardState.FAILED: ("bad", UNDESCRIBED[EventStatus.FAILED].capitalize()),
    CardState.CANCELLED: ("idle", UNDESCRIBED[EventStatus.CANCELLED].capitalize()),
    CardState.SUPERSEDED: ("idle", UNDESCRIBED[EventStatus.SUPERSEDED].capitalize()),
}


class CaptionFeed:
    """One browser's view of the board's cards; call `refresh` to catch up with it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._shown: dict[str, CardView] = {}
        with box("section", "panel p-captions", aria_labelledby="captions-title"):
            with box("div", "panel-head"):
                Text("h2", "Captions", id="captions-title")
                self._count = Text("span", "", "aside num")
            self._list = box("div", "feed", role="feed", aria_label="Captions, newest first", tabindex="0")
            with self._list:
                self._void = box("div", "void")
                with self._void:
                    Text("b", "No captions yet")
                    Text("span", "When a person comes into view, the picture and its description appear here.")
        self.refresh(fresh=False)
        ui.timer(REFRESH_S, self.refresh, immediate=False)

    def refresh(self, *, fresh: bool = True) -> None:
        """Show what changed. `fresh` cards arrive with a movement."""
        cards = self._board.cards()
        wanted = {card.event_id for card in cards}
        for event_id in [event_id for event_id in self._shown if event_id not in wanted]:
            self._shown.pop(event_id).root.delete()
        for card in reversed(cards):
            view = self._shown.get(card.event_id)
            if view is None:
                with self._list:
                    view = self._shown[card.event_id] = CardView(card, fresh=fresh)
                view.root.move(target_index=0)
            view.show(card)
        if self._void.visible == bool(cards):
            self._void.set_visibility(not cards)
        self._count.set_text(summary(cards))


class CardView:
    """One event's card."""

    def __init__(self, card: Card, *, fresh: bool) -> None:
        self._version = -1
        self.root = box("article", "card fresh" if fresh else "card", data_event=card.event_id)
        picture = f"events/{card.event_id}.jpg"
        when = time_of_day(card.t_wall)
        with self.root:
            with box("a", "card-pic", href=f"{picture}?full=true", target="_blank", rel="noopener"):
                box("img", src=picture, loading="lazy", alt=f"The picture described, {card.camera} at {when}")
            with box("div", "card-body"):
                with box("div", "card-meta num"):
                    Text("span", REASONS[Reason(card.reason)].capitalize(), "why")
                    Text("span", card.camera)
                    if card.is_past:
                        Text("span", "earlier run")
                    Text("time", when, datetime=datetime.fromtimestamp(card.t_wall).astimezone().isoformat())
                self._text = Text("p", "", "card-text")
                with box("div", "card-foot num"):
                    self._state = Text("span", "", "state")
                    self._latency = Text("b", "")
                    self._detail = Text("span", "")

    def show(self, card: Card) -> None:
        """Catch up with `card`; cheap when nothing changed."""
        if card.version == self._version:
            return
        self._version = card.version
        set_attributes(
            self.root,
            {"data_state": card.state, "aria_busy": "false" if card.state.is_final else "true"},
        )
        self._text.set_text(card.text)
        tone, word = STATES.get(card.state, ("", ""))
        self._state.set_text(word)
        self._state.set_visibility(bool(word))
        set_attributes(self._state, {"data_tone": tone})
        self._latency.set_text(latency(card))
        self._detail.set_text(detail(card))


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

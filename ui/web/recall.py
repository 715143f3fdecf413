"""What the cameras saw, as notes for a chat: the newest captions and those that speak of what is asked.

Few and short, since small models read some thousand tokens at most and lose themselves in many.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.events import Event, EventStatus
from pipeline.query import EventQuery
from ui.web.captions import time_of_day

if TYPE_CHECKING:
    from pipeline.store import EventStore

NEWEST = 5
RELATED = 4
LONGEST_NOTE = 140
# Words that questions are made of and captions are not about.
_IDLE = """
a about all an and any anybody anyone anything are as at be been by camera cameras can come could describe did
do does ever for from had has have how i if in is it just last latest me most much my now of on or person
people picture please recently saw say see seen she show so tell than that the their them then there they this
to today up us was we were what when where which who whose why will with you your
"""
IDLE_WORDS = frozenset(_IDLE.split())


def recall(store: EventStore, question: str) -> list[Event]:
    """The described events that `question` may be about, the oldest first."""
    found = store.find(EventQuery(status=EventStatus.OK), NEWEST)
    words = [word for word in _words(question) if word not in IDLE_WORDS]
    if words:
        known = {event.event_id for event in found}
        related = store.related(" ".join(words), NEWEST + RELATED)
        found += [event for event in related if event.event_id not in known and event.caption][:RELATED]
    return sorted(found, key=lambda event: event.t_wall)


def as_notes(events: Sequence[Event]) -> str:
    """The events as the model reads them, before the question."""
    lines = [f"- {time_of_day(event.t_wall)}, camera {event.camera}: {_short(event.caption or '')}" for event in events]
    now = time.strftime("%H:%M")
    return "\n".join(
        ["Notes of what the cameras saw, oldest first:", *lines, f"It is {now} now. Answer from the notes."]
    )


def _words(question: str) -> list[str]:
    return ["".join(c for c in word if c.isalnum()) for word in question.lower().split()]


def _short(caption: str) -> str:
    flat = " ".join(caption.split())
    return flat if len(flat) <= LONGEST_NOTE else flat[: LONGEST_NOTE - 1] + "…"

"""How long captions take, point by point, over the latest of them. Works with any backend: it reads events alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.events import Event

KEPT_EVENTS = 100
KEPT_GAPS = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile in seconds, of `count` readings; None without one."""

    p50_s: float | None
    p99_s: float | None
    count: int

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Spread:
        """The spread of `values_s`."""
        ordered = sorted(values_s)
        if not ordered:
            return cls(None, None, 0)
        return cls(ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], len(ordered))


class Latencies:
    """Readings of the latest captions of this run. Single-threaded, bounded.

    `waited` is capture to request, `first_word` request to first word (time to first token), `glass_to_caption` capture
    to last word, `between_words` one piece of a stream to the next as it arrives here.
    """

    def __init__(self) -> None:
        self._waited: deque[float] = deque(maxlen=KEPT_EVENTS)
        self._first_word: deque[float] = deque(maxlen=KEPT_EVENTS)
        self._whole: deque[float] = deque(maxlen=KEPT_EVENTS)
        self._gaps: deque[float] = deque(maxlen=KEPT_GAPS)
        self._last_words: dict[str, float] = {}

    def word(self, event_id: str, t_token: float) -> None:
        """More words of a caption arrived at `t_token`."""
        before = self._last_words.get(event_id)
        if before is not None:
            self._gaps.append(max(0.0, t_token - before))
        self._last_words[event_id] = t_token

    def take(self, event: Event) -> None:
        """An event ended."""
        self._last_words.pop(event.event_id, None)
        if event.t_sent is None or event.t_first_token is None or event.t_last_token is None:
            return
        self._waited.append(max(0.0, event.t_sent - event.t_captured))
        self._first_word.append(max(0.0, event.t_first_token - event.t_sent))
        self._whole.append(max(0.0, event.t_last_token - event.t_captured))

    def spreads(self) -> dict[str, Spread]:
        """All four, by name."""
        return {
            "waited": Spread.of(self._waited),
            "first_word": Spread.of(self._first_word),
            "between_words": Spread.of(self._gaps),
            "glass_to_caption": Spread.of(self._whole),
        }

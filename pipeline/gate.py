"""Decides which frames are worth a caption: a pure function of time and tracks. Knows no clock, picture or backend.

The rules, all in seconds of the caller's clock (`now_s`; PTS for files, monotonic for live sources), per camera:

- A track BEGINS after `min_hits` updates in a row in which the tracker matched it to a detection of at least
  `min_confidence`; from then on weaker ones carry it, too. It is IN VIEW in the updates that match it; a lost track
  that the tracker merely keeps alive is not. It ENDS when unseen for `lost_s`.
- `NEW_TRACK`: a track in view that no selection has shown yet, in a detection of at least `min_confidence`.
- `INTERVAL`: a track in view whose last selection is `interval_s` old.
- One selection shows everybody in view, so it counts as the last selection of all of them.
- COOLDOWN: no selection within `cooldown_s` of the last caption that was really SENT. What never reached the backend
  (superseded, cancelled, refused connection) starts no cooldown.
- At most one NEW_TRACK selection is on its way (selected, not yet sent or ended) at a time; people who come meanwhile
  wait in view and share the next one. So a crowd cannot queue up more captions than the backend answers, and the
  caption that is sent shows the newest picture. An INTERVAL selection may follow one that still waits, and supersedes
  it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config import GateConfig
from pipeline.events import Reason, Track


@dataclass(frozen=True, slots=True)
class Choice:
    """Why this frame: `subject_ids` are the tracks in view that caused it."""

    reason: Reason
    subject_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one update came to: who is in view, who ended, and the choice of this frame, if it is chosen."""

    in_view: tuple[Track, ...]
    ended_ids: tuple[int, ...]
    choice: Choice | None


@dataclass(slots=True)
class _Known:
    """What the gate remembers of one track."""

    num_in_a_row: int
    t_seen: float
    t_selected: float | None = None


class Gate:
    """The rules above for one camera. Not thread-safe: its owner calls it from one thread."""

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        self._known: dict[int, _Known] = {}
        self._t_sent = float("-inf")
        self._new_under_way: str | None = None

    def update(self, now_s: float, tracks: Sequence[Track]) -> Verdict:
        """Take the tracks matched in the frame of `now_s`; `now_s` must not go back."""
        in_view = tuple(track for track in tracks if self._see(track, now_s))
        self._break_rows(now_s)
        ended_ids = self._forget(now_s)
        choice = self._choose(now_s, in_view)
        return Verdict(in_view, ended_ids, choice)

    def selected(self, event_id: str, now_s: float, verdict: Verdict) -> None:
        """The owner made the verdict's choice into the selection `event_id`."""
        assert verdict.choice is not None, "nothing was chosen"
        for track in verdict.in_view:
            self._known[track.track_id].t_selected = now_s
        if verdict.choice.reason is Reason.NEW_TRACK:
            self._new_under_way = event_id

    def sent(self, event_id: str, now_s: float) -> None:
        """The request of `event_id` reached the backend: the cooldown starts."""
        self._t_sent = max(self._t_sent, now_s)
        self.ended(event_id)

    def ended(self, event_id: str) -> None:
        """`event_id` is over, sent or not."""
        if self._new_under_way == event_id:
            self._new_under_way = None

    def _see(self, track: Track, now_s: float) -> bool:
        """Note a match; True once the track has begun. A weak match before that starts its row again."""
        known = self._known.get(track.track_id)
        if known is None or now_s - known.t_seen > self._config.lost_s:
            known = self._known[track.track_id] = _Known(0, now_s)
        known.t_seen = now_s
        if known.num_in_a_row < self._config.min_hits:
            known.num_in_a_row = known.num_in_a_row + 1 if self._is_sure(track) else 0
        return known.num_in_a_row >= self._config.min_hits

    def _is_sure(self, track: Track) -> bool:
        return track.box.conf >= self._config.min_confidence

    def _break_rows(self, now_s: float) -> None:
        """A track that has not begun and was missed now starts its row again; one that has begun keeps going."""
        for known in self._known.values():
            if known.t_seen < now_s and known.num_in_a_row < self._config.min_hits:
                known.num_in_a_row = 0

    def _forget(self, now_s: float) -> tuple[int, ...]:
        over = tuple(i for i, known in self._known.items() if now_s - known.t_seen > self._config.lost_s)
        for track_id in over:
            del self._known[track_id]
        return over

    def _choose(self, now_s: float, in_view: tuple[Track, ...]) -> Choice | None:
        if now_s - self._t_sent < self._config.cooldown_s:
            return None
        new, due = [], []
        for track in in_view:
            t_selected = self._known[track.track_id].t_selected
            if t_selected is None:
                if self._is_sure(track):
                    new.append(track.track_id)
            elif now_s - t_selected >= self._config.interval_s:
                due.append(track.track_id)
        if new and self._new_under_way is None:
            return Choice(Reason.NEW_TRACK, tuple(new + due))
        return Choice(Reason.INTERVAL, tuple(due)) if due else None

"""Decides which frames are worth a caption: a pure function of time and tracks. Knows no clock, picture or backend.

The rules, all in seconds of the caller's clock (`now_s`; PTS for files, monotonic for live sources), per camera:

- A track BEGINS after `min_hits` updates in a row in which the tracker matched it to a detection of at least
  `min_confidence`; from then on weaker ones carry it, too. It is IN VIEW in the updates that match it; a lost track
  that the tracker merely keeps alive is not. It ENDS when unseen for `lost_s`.
- `NEW_TRACK`: a track that no selection has shown yet, in a detection of at least `min_confidence`.
- `CHANGE`: somebody the last selection showed has ended while others stay, or a track has stood in another zone than
  the last selection showed it in for `settle_s`.
- `INTERVAL`: a track in view whose last selection is `interval_s` old.
- One selection shows everybody in its frame, so it counts as the last selection of all of them.
- COOLDOWN: no selection within `cooldown_s` of the last caption that was really SENT. What never reached the backend
  (superseded, cancelled, refused connection) starts no cooldown.
- At most one NEW_TRACK selection is on its way (selected, not yet sent or ended) at a time; people who come meanwhile
  wait in view and share the next one. So a crowd cannot queue up more captions than the backend answers, and the
  caption that is sent shows the newest picture. Other selections may follow one that still waits, and supersede it.
- Who must wait for either and goes meanwhile is LEFT OVER: shown, at the next chance and before anything newer, in the
  last frame of them that was sure. Frames are told apart by their time; those of the last `MAX_LEFT_OVER` are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.config import GateConfig
from pipeline.events import Reason, Track

MAX_LEFT_OVER = 3  # frames of people who went untold; they hold memory


@dataclass(frozen=True, slots=True)
class Choice:
    """Why a frame: `subject_ids` are the tracks that caused it. `is_past`: theirs of `t_frame`, not the present one."""

    reason: Reason
    subject_ids: tuple[int, ...]
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one update came to: who is in view, who ended, and the choice of a frame, if there is one.

    `fresh_ids` are tracks in view that no selection has shown: the present frame is the newest sure one of them.
    """

    in_view: tuple[Track, ...]
    ended_ids: tuple[int, ...]
    choice: Choice | None
    fresh_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class _Known:
    """What the gate remembers of one track. `t_sure`: its last sight of full confidence since it began."""

    num_in_a_row: int
    t_seen: float
    t_sure: float | None = None
    t_selected: float | None = None
    zone: str | None = None
    t_zone: float = 0.0
    zone_shown: str | None = None


class Gate:
    """The rules above for one camera. Not thread-safe: its owner calls it from one thread at a time."""

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        self._known: dict[int, _Known] = {}
        self._in_view: frozenset[int] = frozenset()
        self._left: dict[int, float] = {}  # ended untold: track id -> time of its last sure frame
        self._shown: frozenset[int] = frozenset()  # by the last selection
        self._somebody_went = False  # of those
        self._t_sent = float("-inf")
        self._new_under_way: str | None = None

    def change(self, config: GateConfig) -> None:
        """Go by `config` from now on. Where it asks for more confidence, those in view have to show it once more."""
        if config.min_confidence > self._config.min_confidence:
            for known in self._known.values():
                known.num_in_a_row = 0
        self._config = config

    def update(self, now_s: float, tracks: Sequence[Track]) -> Verdict:
        """Take the tracks matched in the frame of `now_s`; `now_s` must not go back."""
        in_view = tuple(track for track in tracks if self._see(track, now_s))
        self._in_view = frozenset(track.track_id for track in in_view)
        self._break_rows(now_s)
        ended_ids = self._forget(now_s)
        fresh_ids = tuple(i for i in self._untold() if i in self._in_view and self._known[i].t_sure == now_s)
        self._bound_left_over()
        return Verdict(in_view, ended_ids, self._choose(now_s, in_view, fresh_ids), fresh_ids)

    def overdue(self, now_s: float, *, is_end: bool = False) -> Choice | None:
        """The choice of a past frame that is due without a new one; at the end of all frames nothing is waited for."""
        if is_end:
            self._in_view = frozenset()
        if not is_end and now_s - self._t_sent < self._config.cooldown_s:
            return None
        return self._choose_left_over()

    @property
    def untold_ids(self) -> frozenset[int]:
        """The tracks, in view or gone, that began and that no selection has shown: their frames are still needed."""
        return frozenset(self._untold())

    def selected(self, event_id: str, now_s: float, choice: Choice, shown: Iterable[Track]) -> None:
        """The owner made `choice` into the selection `event_id`, whose frame shows the tracks `shown`."""
        shown = tuple(shown)
        for track in shown:
            self._left.pop(track.track_id, None)
            if (known := self._known.get(track.track_id)) is not None:
                known.t_selected, known.zone_shown = now_s, track.zone
        self._shown = frozenset(track.track_id for track in shown)
        self._somebody_went = False
        if choice.reason is Reason.NEW_TRACK:
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
            self._end(track.track_id)
            known = self._known[track.track_id] = _Known(0, now_s)
        known.t_seen = now_s
        is_sure = track.box.conf >= self._config.min_confidence
        if known.num_in_a_row < self._config.min_hits:
            known.num_in_a_row = known.num_in_a_row + 1 if is_sure else 0
        has_begun = known.num_in_a_row >= self._config.min_hits
        if has_begun and is_sure:
            known.t_sure = now_s
            self._left.pop(track.track_id, None)
        if track.zone != known.zone:
            known.zone, known.t_zone = track.zone, now_s
        return has_begun

    def _break_rows(self, now_s: float) -> None:
        """A track that has not begun and was missed now starts its row again; one that has begun keeps going."""
        for known in self._known.values():
            if known.t_seen < now_s and known.num_in_a_row < self._config.min_hits:
                known.num_in_a_row = 0

    def _forget(self, now_s: float) -> tuple[int, ...]:
        over = tuple(i for i, known in self._known.items() if now_s - known.t_seen > self._config.lost_s)
        for track_id in over:
            self._end(track_id)
        return over

    def _end(self, track_id: int) -> None:
        known = self._known.pop(track_id, None)
        if known is None:
            return
        if known.t_selected is None and known.t_sure is not None:
            self._left[track_id] = known.t_sure
        self._somebody_went = self._somebody_went or track_id in self._shown

    def _untold(self) -> dict[int, float]:
        """Every track that began and was not shown, with the time of its last sure frame."""
        known = {i: k.t_sure for i, k in self._known.items() if k.t_selected is None and k.t_sure is not None}
        return self._left | known

    def _left_over(self) -> dict[int, float]:
        return {i: t_sure for i, t_sure in self._untold().items() if i not in self._in_view}

    def _bound_left_over(self) -> None:
        """Give up the oldest of more frames than are kept. Of a track that may still come back, the frame only."""
        left_over = self._left_over()
        for t_frame in sorted(set(left_over.values()))[:-MAX_LEFT_OVER]:
            for track_id in [i for i, t_sure in left_over.items() if t_sure == t_frame]:
                self._left.pop(track_id, None)
                if track_id in self._known:
                    self._known[track_id].t_sure = None

    def _choose(self, now_s: float, in_view: tuple[Track, ...], fresh_ids: tuple[int, ...]) -> Choice | None:
        if now_s - self._t_sent < self._config.cooldown_s:
            return None
        if self._left_over():
            return self._choose_left_over()
        told = {
            i: self._known[i] for i in (track.track_id for track in in_view) if self._known[i].t_selected is not None
        }
        due = tuple(i for i, k in told.items() if now_s - (k.t_selected or 0.0) >= self._config.interval_s)
        if fresh_ids and self._new_under_way is None:
            return Choice(Reason.NEW_TRACK, fresh_ids + due)
        if told and self._somebody_went:
            return Choice(Reason.CHANGE, tuple(told))
        moved = tuple(i for i, known in told.items() if self._has_moved(known, now_s))
        if moved:
            return Choice(Reason.CHANGE, moved)
        return Choice(Reason.INTERVAL, due) if due else None

    def _choose_left_over(self) -> Choice | None:
        left_over = self._left_over()
        if not left_over or self._new_under_way is not None:
            return None
        oldest = min(left_over.values())
        return Choice(Reason.NEW_TRACK, tuple(i for i, t in left_over.items() if t == oldest), is_past=True)

    def _has_moved(self, known: _Known, now_s: float) -> bool:
        return known.zone != known.zone_shown and now_s - known.t_zone >= self._config.settle_s

"""The gate under anything that can happen: people come, flicker, move and go; captions are sent or not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.config import GateConfig
from pipeline.events import Reason, Track
from pipeline.gate import MAX_LEFT_OVER, Choice, Gate, Verdict
from tests.unit.pipeline.fakes import PERSON, track

SIGHTS = st.dictionaries(
    st.integers(1, 5), st.tuples(st.sampled_from([0.25, 0.4, 0.9]), st.sampled_from(["drive", "lawn"])), max_size=4
)
PAUSES_S = st.sampled_from([0.2, 0.2, 0.2, 1.0, 2.1, 6.0])


class GateMachine(RuleBasedStateMachine):
    """Keeps its own book of who began and who was shown, from the rules as they are written and not as they are coded.

    Visitors get numbers of their own when they come back after having ended, as the tracker gives them.
    """

    @initialize(min_hits=st.integers(1, 3), cooldown_s=st.sampled_from([0.0, 1.0, 5.0]))
    def begin(self, min_hits: int, cooldown_s: float) -> None:
        self.config = GateConfig(min_hits=min_hits, cooldown_s=cooldown_s, interval_s=4.0)
        self.gate, self.twin = Gate(self.config), Gate(self.config)
        self.t = 0.0
        self.t_sent = float("-inf")
        self.rows: dict[int, int] = {}
        self.t_seen: dict[int, float] = {}
        self.begun: set[int] = set()
        self.sure_frames: dict[int, set[float]] = {}
        self.t_shown: dict[int, float] = {}
        self.zone_shown: dict[int, str | None] = {}
        self.frames: dict[float, tuple[Track, ...]] = {}
        self.under_way: dict[str, Reason] = {}
        self.in_view: set[int] = set()
        self.ids = {person: person for person in range(1, 6)}
        self.num_selected = 0
        self.given_up: set[int] = set()

    @rule(pause_s=PAUSES_S, sights=SIGHTS)
    def look(self, pause_s: float, sights: dict[int, tuple[float, str]]) -> None:
        self.t += pause_s
        for person, track_id in self.ids.items():
            if self.t - self.t_seen.get(track_id, self.t) > self.config.lost_s:
                self.ids[person] = track_id + 5
        tracks = [
            replace(track(self.ids[person], replace(PERSON, conf=conf)), zone=zone)
            for person, (conf, zone) in sights.items()
        ]
        self._note(tracks)
        verdict = self.gate.update(self.t, tracks)
        assert verdict == self.twin.update(self.t, tracks), "the same story gives the same choices"
        assert {seen.track_id for seen in verdict.in_view} == {t.track_id for t in tracks} & self.begun
        self.frames[self.t] = verdict.in_view
        self.in_view = {seen.track_id for seen in verdict.in_view}
        if verdict.choice is not None:
            self._check(verdict.choice, verdict)
            self._select(verdict.choice)

    @rule(pause_s=PAUSES_S)
    def wait(self, pause_s: float) -> None:
        self.t += pause_s
        choice = self.gate.overdue(self.t)
        assert choice == self.twin.overdue(self.t)
        if choice is not None:
            assert choice.is_past
            self._check(choice, None)
            self._select(choice)

    @precondition(lambda self: self.under_way)
    @rule(is_sent=st.booleans())
    def answer(self, is_sent: bool) -> None:
        event_id = next(iter(self.under_way))
        del self.under_way[event_id]
        if is_sent:
            self.t_sent = self.t
        for gate in (self.gate, self.twin):
            (gate.sent(event_id, self.t) if is_sent else gate.ended(event_id))

    @invariant()
    def only_the_begun_are_untold(self) -> None:
        if hasattr(self, "gate"):
            assert self.gate.untold_ids <= self.begun - self.t_shown.keys()

    def teardown(self) -> None:
        """Nobody comes any more and all is answered: everybody who began has been shown, but for the oldest of many."""
        if not hasattr(self, "gate"):
            return
        self.look(10.0, {})
        for _ in range(40):
            while self.under_way:
                self.answer(is_sent=True)
            self.wait(6.0)
        assert self.begun - self.t_shown.keys() == self.given_up
        assert self.gate.untold_ids == frozenset()

    def _note(self, tracks: list[Track]) -> None:
        seen = {t.track_id: t.box.conf >= self.config.min_confidence for t in tracks}
        for track_id in list(self.rows):
            if track_id not in seen and track_id not in self.begun:
                self.rows[track_id] = 0
        for track_id, is_sure in seen.items():
            self.rows[track_id] = self.rows.get(track_id, 0) + 1 if is_sure else 0
            self.t_seen[track_id] = self.t
            if self.rows[track_id] >= self.config.min_hits:
                self.begun.add(track_id)
            if track_id in self.begun and is_sure:
                self.given_up.discard(track_id)
                self.sure_frames.setdefault(track_id, set()).add(self.t)
        left_over = {
            i: max(self.sure_frames[i]) for i in self.begun - self.t_shown.keys() - seen.keys() - self.given_up
        }
        for t_frame in sorted(set(left_over.values()))[:-MAX_LEFT_OVER]:
            self.given_up |= {i for i, t in left_over.items() if t == t_frame}

    def _check(self, choice: Choice, verdict: Verdict | None) -> None:
        subjects = set(choice.subject_ids)
        assert subjects
        assert self.t - self.t_sent >= self.config.cooldown_s
        assert subjects <= self.begun
        untold = subjects - self.t_shown.keys()
        match choice.reason:
            case Reason.NEW_TRACK:
                assert untold
                assert Reason.NEW_TRACK not in self.under_way.values(), "one at a time"
            case Reason.CHANGE | Reason.INTERVAL:
                assert not untold
                assert not choice.is_past
        if choice.reason is Reason.INTERVAL:
            assert all(self.t - self.t_shown[i] >= self.config.interval_s for i in subjects)
        if verdict is not None and not choice.is_past:
            assert subjects <= {seen.track_id for seen in verdict.in_view}

    def _select(self, choice: Choice) -> None:
        t_frame = self.t
        if choice.is_past:
            t_frame = max(self.sure_frames[choice.subject_ids[0]])
            assert all(max(self.sure_frames[i]) == t_frame for i in choice.subject_ids)
            gone = self.begun - self.t_shown.keys() - self.given_up - self.in_view
            assert t_frame == min(max(self.sure_frames[i]) for i in gone), "the oldest first"
        shown = self.frames[t_frame]
        assert set(choice.subject_ids) <= {seen.track_id for seen in shown}
        self.num_selected += 1
        event_id = str(self.num_selected)
        for gate in (self.gate, self.twin):
            gate.selected(event_id, self.t, choice, shown)
        for seen in shown:
            self.t_shown[seen.track_id] = self.t
            self.given_up.discard(seen.track_id)
        self.under_way[event_id] = choice.reason


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

"""The gate as tables: who is seen when, and which frames are chosen. Times are seconds of the gate's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from pipeline.config import GateConfig
from pipeline.events import Reason, Track
from pipeline.gate import MAX_LEFT_OVER, Choice, Gate, Verdict
from tests.unit.pipeline.fakes import PERSON, track

NEW, CHANGED, AGAIN = Reason.NEW_TRACK, Reason.CHANGE, Reason.INTERVAL
Chosen = tuple[float, Reason, tuple[int, ...]]


def play(
    seen: Callable[[float], Iterable[int]],
    until_s: float,
    *,
    is_sent: Callable[[float], bool] = lambda _: True,
    answer_s: float = 0.0,
    fps: float = 5.0,
) -> tuple[list[Chosen], list[Verdict]]:
    """Run a gate over tracks `seen(t)`; each choice is sent `answer_s` later if `is_sent(t)`, else it ends unsent."""
    gate, chosen, verdicts, under_way = Gate(GateConfig()), [], [], []

    def answer(t: float) -> None:
        for due in [entry for entry in under_way if entry[0] <= t]:
            under_way.remove(due)
            (gate.sent(due[1], t) if is_sent(t) else gate.ended(due[1]))

    for step in range(round(until_s * fps)):
        t = step / fps
        answer(t)
        verdict = gate.update(t, [track(i) for i in seen(t)])
        verdicts.append(verdict)
        if verdict.choice:
            gate.selected(f"event-{step}", t, verdict.choice, verdict.in_view)
            chosen.append((t, verdict.choice.reason, verdict.choice.subject_ids))
            under_way.append((t + answer_s, f"event-{step}"))
            answer(t)
    return chosen, verdicts


@pytest.mark.parametrize(
    ("seen", "until_s", "expected"),
    [
        pytest.param(lambda t: [], 30, [], id="nobody"),
        pytest.param(lambda t: [1] if t == 3 else [], 10, [], id="one detection begins nothing"),
        pytest.param(lambda t: [1] if t in (3, 3.4, 3.8) else [], 10, [], id="every other detection begins nothing"),
        pytest.param(lambda t: [1] if 3 <= t <= 3.2 else [], 10, [(3.2, NEW, (1,))], id="two in a row begin a track"),
        pytest.param(
            lambda t: [1],
            25,
            [(0.2, NEW, (1,)), (10.2, AGAIN, (1,)), (20.2, AGAIN, (1,))],
            id="somebody who stays is told of every interval",
        ),
        pytest.param(
            lambda t: [1] if t < 9 or t > 10.5 else [],
            12,
            [(0.2, NEW, (1,)), (10.6, AGAIN, (1,))],
            id="unseen when the interval is over: waits until seen again",
        ),
        pytest.param(
            lambda t: [1] if t < 2 or t > 8 else [],
            10,
            [(0.2, NEW, (1,)), (8.4, NEW, (1,))],
            id="back after the track ended: a new visit, of two detections",
        ),
        pytest.param(
            lambda t: [1, 2] if t >= 2 else [1],
            11,
            [(0.2, NEW, (1,)), (5.2, NEW, (2,))],
            id="a second person waits for the cooldown; the shared picture restarts both intervals",
        ),
        pytest.param(
            lambda t: [i for i in (1, 2, 3) if t >= i], 8, [(1.2, NEW, (1,)), (6.2, NEW, (2, 3))], id="newcomers share"
        ),
    ],
)
def test_choices(seen: Callable[[float], Iterable[int]], until_s: float, expected: list[Chosen]) -> None:
    assert play(seen, until_s)[0] == expected


def test_what_was_not_sent_starts_no_cooldown() -> None:
    def seen(t: float) -> list[int]:
        return [1, 2] if t >= 1 else [1]

    assert play(seen, 4)[0] == [(0.2, NEW, (1,))]
    assert play(seen, 4, is_sent=lambda _: False)[0] == [(0.2, NEW, (1,)), (1.2, NEW, (2,))]


def test_the_cooldown_starts_when_the_caption_is_sent_not_when_it_is_selected() -> None:
    chosen, _ = play(lambda t: [1, 2] if t >= 1 else [1], 12, answer_s=3)
    assert chosen[1] == (pytest.approx(8.2, abs=0.21), NEW, (2,))  # sent at 3.2


def test_only_one_newcomer_selection_is_under_way() -> None:
    """Every second somebody new comes and stays, nothing is answered for a minute: one caption waits, not sixty."""
    chosen, _ = play(lambda t: range(1, int(t) + 1), 9, answer_s=60)
    assert [(reason, ids) for _, reason, ids in chosen] == [(NEW, (1,))]


def test_intervals_go_on_while_nothing_is_sent() -> None:
    """So that a newer picture can supersede the one that waits."""
    chosen, _ = play(lambda t: [1], 31, answer_s=100)
    assert [reason for _, reason, _ in chosen] == [NEW, AGAIN, AGAIN, AGAIN]


def test_ends_are_told_once_and_late_frames_end_too() -> None:
    _, verdicts = play(lambda t: [1] if t < 3 else [], 10)
    ends = [(step / 5, v.ended_ids) for step, v in enumerate(verdicts) if v.ended_ids]
    assert ends == [(5.0, (1,))]  # last seen at 2.8, lost for more than 2 s
    gate = Gate(GateConfig())
    gate.update(0.0, [track(1)])
    assert gate.update(60.0, []).ended_ids == (1,)


def test_only_tracks_that_began_are_in_view() -> None:
    gate = Gate(GateConfig(min_hits=3))
    views = [gate.update(t / 5, [track(1)]).in_view for t in range(4)]
    assert [len(view) for view in views] == [0, 0, 1, 1]
    assert gate.update(0.8, []).in_view == ()
    assert gate.update(1.0, [track(1)]).in_view == (track(1),), "a short gap does not make a known person begin anew"


def test_a_track_begins_and_is_first_shown_in_detections_of_the_full_confidence() -> None:
    def matched(conf: float) -> Track:
        return track(1, replace(PERSON, conf=conf))

    gate = Gate(GateConfig(min_confidence=0.4, cooldown_s=1.0))
    views = [gate.update(t / 5, [matched(conf)]) for t, conf in enumerate((0.5, 0.3, 0.5, 0.4))]
    assert [len(verdict.in_view) for verdict in views] == [0, 0, 0, 1], "a weak detection starts the row again"
    assert views[3].choice == Choice(NEW, (1,))
    gate.sent("somebody else", 0.6)
    weak, sure = (gate.update(t, [matched(conf)]) for t, conf in ((1.6, 0.3), (1.8, 0.4)))
    assert len(weak.in_view) == 1, "a weak detection carries on a track that has begun"
    assert (weak.choice, sure.choice) == (None, Choice(NEW, (1,)))


def test_who_comes_and_goes_within_another_s_cooldown_is_told_of_in_the_last_sure_frame_of_them() -> None:
    gate = Gate(GateConfig())
    for step in range(3):
        verdict = gate.update(step / 5, [track(1)])
        if verdict.choice:
            gate.selected("first", step / 5, verdict.choice, verdict.in_view)
            gate.sent("first", step / 5)
    for t, ids in ((1.0, (1, 2)), (1.2, (1, 2)), (1.4, (1, 2)), (1.6, (1,)), (4.0, (1,))):
        verdict = gate.update(t, [track(i) for i in ids])
        assert verdict.choice is None, "the cooldown of 1's caption"
        assert verdict.fresh_ids == ((2,) if t in (1.2, 1.4) else ())
    assert gate.untold_ids == {2}
    assert gate.overdue(4.8) is None
    assert gate.overdue(5.3) == Choice(NEW, (2,), is_past=True)
    verdict = gate.update(5.4, [track(1), track(3)])
    assert verdict.choice == Choice(NEW, (2,), is_past=True), "before anything newer"
    assert verdict.choice is not None
    gate.selected("second", 5.4, verdict.choice, [track(1), track(2)])
    assert gate.untold_ids == frozenset()
    assert gate.overdue(99.0) is None, "once"


def test_at_the_end_who_was_not_told_of_is_waited_for_no_longer() -> None:
    gate = Gate(GateConfig())
    for t, ids in ((0.0, (1,)), (0.2, (1,)), (0.4, (1, 2)), (0.6, (1, 2))):
        verdict = gate.update(t, [track(i) for i in ids])
        if verdict.choice:
            gate.selected("first", t, verdict.choice, verdict.in_view)
            gate.sent("first", t)
    assert gate.overdue(0.8) is None
    assert gate.overdue(0.8, is_end=True) == Choice(NEW, (2,), is_past=True)


def test_more_people_gone_untold_than_frames_are_kept_of_lose_the_oldest() -> None:
    gate = Gate(GateConfig(min_hits=1, cooldown_s=100.0))
    gate.sent("somebody else", 0.0)
    for visitor in range(6):
        gate.update(1.0 + visitor, [track(visitor)])
    gate.update(20.0, [])
    assert gate.untold_ids == {3, 4, 5}
    assert len(gate.untold_ids) == MAX_LEFT_OVER


@pytest.mark.parametrize(
    ("seen", "until_s", "expected"),
    [
        pytest.param(
            lambda t: [1, 2] if t < 7 else [2],
            12,
            [(0.2, NEW, (1, 2)), (8.8, CHANGED, (2,))],
            id="one of two leaves for good: those who stay are told of",
        ),
        pytest.param(lambda t: [1, 2] if not 6 < t < 7.8 else [2], 10, [(0.2, NEW, (1, 2))], id="a gap is no leaving"),
        pytest.param(lambda t: [1] if t < 7 else [], 12, [(0.2, NEW, (1,))], id="nobody is left to be shown"),
    ],
)
def test_changes_of_who_is_there(
    seen: Callable[[float], Iterable[int]], until_s: float, expected: list[Chosen]
) -> None:
    assert play(seen, until_s)[0] == expected


def test_a_track_that_settles_in_another_zone_is_a_change() -> None:
    gate, chosen = Gate(GateConfig()), list[tuple[float, Choice]]()
    zones = ["drive"] * 30 + ["lawn", "drive"] * 3 + ["lawn"] * 9
    for step, zone in enumerate(zones):
        t = step / 5
        verdict = gate.update(t, [replace(track(1), zone=zone)])
        if verdict.choice:
            chosen.append((t, verdict.choice))
            gate.selected(str(step), t, verdict.choice, verdict.in_view)
            gate.sent(str(step), t)
    assert chosen == [(0.2, Choice(NEW, (1,))), (8.4, Choice(CHANGED, (1,)))], "on the border is not settled"

"""Who pushes whom out of a camera's queue."""

from __future__ import annotations

from dataclasses import replace

from pipeline.events import CaptionJob, Reason
from pipeline.queue import CaptionQueue
from tests.unit.pipeline.fakes import frame, job

NEW, AGAIN = Reason.NEW_TRACK, Reason.INTERVAL


def names(jobs: list[CaptionJob]) -> list[str]:
    return [waiting.selection.event_id for waiting in jobs]


def test_a_newer_selection_of_the_same_track_supersedes_its_follow_up() -> None:
    queue = CaptionQueue()
    assert queue.add(job("old", [1], AGAIN)) == []
    assert names(queue.add(job("newer", [1], AGAIN))) == ["old"]
    assert names(queue.drain()) == ["newer"]


def test_a_change_is_a_follow_up_like_any_other() -> None:
    queue = CaptionQueue()
    queue.add(job("left", [1], Reason.CHANGE))
    assert names(queue.add(job("newer", [1], Reason.CHANGE))) == ["left"]
    assert names(queue.end_tracks([1])) == ["newer"]


def test_an_older_picture_replaces_no_newer_one() -> None:
    queue = CaptionQueue()
    again = job("again", [1], AGAIN)
    queue.add(replace(again, selection=replace(again.selection, frame=frame(7))))
    assert queue.add(job("of somebody who went", [2], NEW, shown=[1, 2])) == []


def test_a_follow_up_of_somebody_else_stays() -> None:
    queue = CaptionQueue()
    queue.add(job("of one", [1], AGAIN))
    assert queue.add(job("of two", [2], AGAIN)) == []
    assert names(queue.add(job("of two, showing one", [2], AGAIN, shown=[1, 2]))) == ["of one", "of two"]


def test_a_follow_up_for_two_is_superseded_only_when_both_are_shown() -> None:
    queue = CaptionQueue()
    queue.add(job("both", [1, 2], AGAIN))
    assert queue.add(job("one", [1], AGAIN)) == []
    assert queue.end_tracks([2]) == []
    assert names(queue.add(job("one again", [1], AGAIN))) == ["both", "one"]


def test_a_first_caption_is_never_superseded_nor_cancelled() -> None:
    queue = CaptionQueue()
    queue.add(job("first", [1], NEW))
    assert queue.add(job("later", [1], AGAIN)) == []
    assert names(queue.end_tracks([1])) == ["later"]
    assert names(queue.drain()) == ["first"]


def test_a_follow_up_is_cancelled_when_its_last_subject_ends() -> None:
    queue = CaptionQueue()
    queue.add(job("both", [1, 2], AGAIN))
    assert queue.end_tracks([1, 7]) == []
    assert names(queue.end_tracks([2])) == ["both"]
    assert len(queue) == 0


def test_jobs_leave_in_order() -> None:
    queue = CaptionQueue()
    for name, subject in (("a", 1), ("b", 2)):
        queue.add(job(name, [subject], NEW))
    taken = [queue.try_take(), queue.try_take(), queue.try_take()]
    assert [entry and entry.selection.event_id for entry in taken] == ["a", "b", None]

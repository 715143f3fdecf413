"""The line format that other programs rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.events import Box, Event, EventStatus, Reason
from pipeline.jsonl import JsonlError, JsonlWriter, to_line

KEYS = [
    *("camera", "frame_seq", "pts_s", "track_ids", "boxes", "zone", "reason", "status"),
    *("caption", "count_mismatch", "details", "model"),
    *("t_captured", "t_selected", "t_sent", "t_first_token", "t_last_token", "t_wall"),
]

OK_EVENT = Event(
    event_id="e1",
    camera="door",
    frame_seq=42,
    pts_s=4.2,
    track_ids=(3, 5),
    boxes=(Box(1.5, 2, 30, 40, 0.875), Box(50, 60, 70, 80, 0.5)),
    reason=Reason.NEW_TRACK,
    status=EventStatus.OK,
    caption='A man says "Grüß Gott".\nTwice.',
    model="demo",
    t_captured=100.0,
    t_selected=100.25,
    t_sent=100.5,
    t_first_token=101.0,
    t_last_token=102.0,
    t_wall=1_700_000_000.5,
    error=None,
    jpeg_path="pictures/x.jpg",
)
FAILED_EVENT = replace(
    OK_EVENT, status=EventStatus.FAILED, caption=None, model=None, t_sent=None, t_first_token=None, t_last_token=None,
    error="cannot reach the backend",
)  # fmt: skip


def test_a_line_has_exactly_the_promised_fields() -> None:
    line = to_line(OK_EVENT)
    assert "\n" not in line
    read = json.loads(line)
    assert list(read) == KEYS
    assert read["boxes"] == [[1.5, 2, 30, 40, 0.875], [50, 60, 70, 80, 0.5]]
    assert read["track_ids"] == [3, 5]
    assert (read["reason"], read["status"], read["caption"]) == ("new_track", "ok", OK_EVENT.caption)


def test_what_was_never_reached_is_null() -> None:
    read = json.loads(to_line(FAILED_EVENT))
    assert [key for key in KEYS if read[key] is None] == [
        *("zone", "caption", "details", "model", "t_sent", "t_first_token", "t_last_token")
    ]
    assert read["status"] == "failed"


def test_times_are_as_fine_as_they_mean_anything() -> None:
    read = json.loads(
        to_line(replace(OK_EVENT, pts_s=1.4000000001, t_captured=2284.58123456, t_wall=1795979346.850049))
    )
    assert (read["pts_s"], read["t_captured"], read["t_wall"]) == (1.4, 2284.5812, 1795979346.85)


def test_lines_are_in_the_file_at_once_and_earlier_runs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for _ in range(2):
        writer = JsonlWriter(path)
        writer.write(OK_EVENT)
        assert path.read_text().endswith(to_line(OK_EVENT) + "\n"), "flushed before close"
        writer.close()
        writer.close()
    assert path.read_text() == (to_line(OK_EVENT) + "\n") * 2


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "out.jsonl")
    threads = [threading.Thread(target=lambda: [writer.write(OK_EVENT) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert {json.loads(line)["frame_seq"] for line in (tmp_path / "out.jsonl").read_text().splitlines()} == {42}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(JsonlError, match=r"cannot write .*missing/out\.jsonl: No such file"):
        JsonlWriter(tmp_path / "missing" / "out.jsonl")
    with pytest.raises(JsonlError, match="Is a directory"):
        JsonlWriter(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_its_own() -> None:
    writer = JsonlWriter("/dev/full")
    with pytest.raises(JsonlError, match="/dev/full: No space left"):
        writer.write(OK_EVENT)
    with pytest.raises(JsonlError, match="/dev/full: No space left"):
        writer.close()  # the line still waits, and is lost with this
    writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_standard_output_is_told_once_and_not_by_the_interpreter() -> None:
    program = (
        "from pipeline.jsonl import JsonlError, JsonlWriter\n"
        "from tests.unit.pipeline.test_jsonl import OK_EVENT\n"
        "writer = JsonlWriter('-')\n"
        "try: writer.write(OK_EVENT)\n"
        "except JsonlError: pass\n"
        "try: writer.close()\n"
        "except JsonlError as error: raise SystemExit(str(error))\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "cannot write standard output: No space left on device\n")

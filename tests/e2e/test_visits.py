"""Six people come one by one: each is told of while in view, nobody at any other time; with every real part there is.

`watchword watch` with its own engine (the demo model), its own detector and the real clip, read as a file and played by
a real RTSP server at its own pace. Minutes each, so `long`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cameras.fixtures import RtspServer, require_clip

VISITS_S = ((6.5, 19.0), (23.0, 44.5), (50.5, 69.5), (74.5, 86.5), (92.5, 119.5), (123.5, 135.5))
CLIP_S = 139.4
TOLERANCE_S = 1.0
RTSP_TOLERANCE_S = 3.0  # besides, connecting takes a second or two that the stream's own clock does not count

pytestmark = [pytest.mark.long, pytest.mark.clips]

Line = dict[str, Any]


@contextmanager
def watching(source: str, out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`watchword watch` on `source`, ended by Ctrl-C if it still runs."""
    command = [sys.executable, "-m", "ui.cli", "watch", source, f"--jsonl={out}", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)


def lines_of(out: Path) -> list[Line]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def captioned(lines: list[Line]) -> list[Line]:
    assert all(line["caption"] for line in lines if line["status"] == "ok")
    return [line for line in lines if line["status"] == "ok"]


def assert_the_six_visits(lines: list[Line], tolerance_s: float) -> None:
    """At least one captioned event inside each visit, no event of any kind outside."""
    moments = [line["pts_s"] for line in captioned(lines)]
    missed = [visit for visit in VISITS_S if not any(visit[0] <= moment <= visit[1] for moment in moments)]
    assert missed == [], f"no caption for {missed}; captions at {moments}"
    strays = [
        line
        for line in lines
        if not any(start - tolerance_s <= line["pts_s"] <= end + tolerance_s for start, end in VISITS_S)
    ]
    assert strays == []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"it ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.2)


@pytest.mark.timeout(900)
def test_every_visit_of_a_file_is_told_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with watching(str(require_clip("one-by-one-person-detection.mp4")), out, "--no-realtime") as process:
        assert process.wait(800) == 0
    lines = lines_of(out)
    assert_the_six_visits(lines, TOLERANCE_S)
    assert {line["status"] for line in lines} == {"ok"}, "read without pacing, nothing is dropped or superseded"


@pytest.mark.timeout(600)
def test_a_clip_without_people_has_no_event(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with watching(str(require_clip("car-detection.mp4")), out, "--no-realtime") as process:
        assert process.wait(500) == 0
    assert lines_of(out) == []


@pytest.mark.rtsp
@pytest.mark.timeout(900)
def test_every_visit_is_told_over_rtsp_and_a_server_that_comes_back_is_picked_up(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    clip = require_clip("one-by-one-person-detection.mp4")
    with RtspServer(clip, user="guard", password="p@ss:word/1") as camera, watching(camera.url, out) as process:
        wait_for(lambda: bool(captioned(lines_of(out))), process, 240)
        seconds_left = CLIP_S - lines_of(out)[0]["pts_s"]
        time.sleep(seconds_left - 2)
        first_round = lines_of(out)
        camera.kill()
        time.sleep(5)
        camera.restart()
        wait_for(lambda: len(captioned(lines_of(out))) > len(captioned(first_round)), process, 120)
    assert_the_six_visits(first_round, RTSP_TOLERANCE_S)
    times = [(line["t_captured"], line["pts_s"], line["frame_seq"]) for line in lines_of(out)]
    assert times == sorted(times), "one clock over the reconnect"
    assert "p@ss" not in out.read_text()

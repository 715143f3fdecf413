"""Six people come one by one: each is told of while in view, nobody at any other time; with every real part there is.

With an engine of its own (the demo model), its own detector and the real clip, read as a file and played by a real RTSP
server at its own pace; last by a camera with trouble, where the pictures kept tell which moment they show. Minutes
each, so `long`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from pipeline.events import Event, Reason
from pipeline.query import EventQuery
from pipeline.store import EventStore
from tests.cameras.burned import burn_numbers, read_number
from tests.cameras.fixtures import RtspServer, require_clip
from tests.e2e.product import Product

VISITS_S = ((6.5, 19.0), (23.0, 44.5), (50.5, 69.5), (74.5, 86.5), (92.5, 119.5), (123.5, 135.5))
CLIP_S = 139.4
CLIP_SIZE, CLIP_FPS = (768, 432), 10
TOLERANCE_S = 1.0
RTSP_TOLERANCE_S = 3.0  # besides, connecting takes a second or two that the stream's own clock does not count

INTERVAL_S, COOLDOWN_S = 10.0, 5.0
CAMERA = """\
cameras:
  - name: hall
    source: {url}
    username: guard
    password_env: HALL_PASSWORD
    picture: full
"""

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


@pytest.mark.rtsp
@pytest.mark.timeout(900)
def test_pictures_of_a_camera_that_freezes_twice_and_restarts_show_the_six_visits(tmp_path: Path) -> None:
    """Each picture says by its strip which moment it shows: inside a visit, in order, no more often than the rules say.

    Frozen for 5 s the camera goes on where it was, late; for 14 s it is given up and reconnected to. The scene before
    it goes on all the while.
    """
    clip = require_clip("one-by-one-person-detection.mp4")
    numbered = burn_numbers(clip, tmp_path / "numbered.mp4", CLIP_SIZE, CLIP_FPS)
    config = tmp_path / "watchword.yaml"
    env = {"HALL_PASSWORD": "p@ss:word/1"}
    with RtspServer(numbered, user="guard", password=env["HALL_PASSWORD"], keeps_time=True) as camera:
        config.write_text(CAMERA.format(url=camera.bare_url))
        with Product(f"--config={config}", home=tmp_path, env=env, wait=False) as product:
            product.until(lambda: product.has_said(product.page), 300.0)
            began_s = camera.scene_s  # at the latest: it may have been seen for a while
            for at_s, trouble in _troubles(camera, began_s):
                _sleep_until(camera, at_s)
                trouble()
            _sleep_until(camera, began_s + CLIP_S + 15.0)
    assert product.has_said("hall is silent: no picture for")
    assert product.has_said("hall is down: ")
    assert product.has_said("hall is live again")
    store = EventStore(tmp_path / "data")
    events = store.find(EventQuery(), 1000)[::-1]
    moments = [_moment(store, event) for event in events]
    store.close()
    _assert_told_by_the_rules(events, moments)


def _troubles(camera: RtspServer, from_s: float) -> list[tuple[float, Callable[[], None]]]:
    """What happens to the camera, at which second of the scene: each within a visit, wherever the clip stood first."""
    plan = [(28.0, camera.freeze), (33.0, camera.thaw)]
    plan += [(54.0, camera.freeze), (68.0, camera.thaw)]
    plan += [(100.0, camera.kill), (104.0, camera.restart)]
    rounds = [(at_s + n * CLIP_S, trouble) for n in range(1 + int(from_s // CLIP_S) + 1) for at_s, trouble in plan]
    first = next(i for i, (at_s, _) in enumerate(rounds) if at_s > from_s and i % 2 == 0)
    return rounds[first : first + len(plan)]


def _sleep_until(camera: RtspServer, scene_s: float) -> None:
    time.sleep(max(0.0, scene_s - camera.scene_s))


def _moment(store: EventStore, event: Event) -> float:
    """The clip second that an event's picture shows."""
    jpeg = store.jpeg(event.event_id)
    assert jpeg is not None
    return read_number(np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR), np.uint8)) / CLIP_FPS


def _assert_told_by_the_rules(events: list[Event], moments: list[float]) -> None:
    pairs = list(zip(moments, events, strict=True))
    told = [f"{moment:.1f} s {e.reason} {e.status} {e.track_ids} at {e.t_captured:.1f}" for moment, e in pairs]
    assert all(_visit_of(moment) is not None for moment in moments), told
    assert {_visit_of(moment) for moment, event in pairs if event.caption} == set(range(len(VISITS_S))), told
    for earlier, later in pairwise(events):
        assert (earlier.frame_seq, earlier.pts_s) < (later.frame_seq, later.pts_s), told
        assert earlier.t_captured < later.t_captured, told
    assert sum(b < a for a, b in pairwise(moments)) <= 2, f"moments go back only where the clip begins anew: {told}"
    last_shown: dict[int, float] = {}
    for event in events:
        assert _is_due(event, last_shown), f"{event.t_captured:.1f}: {told}"
        last_shown |= dict.fromkeys(event.track_ids, event.t_captured)
    sent = [event.t_sent for event in events if event.t_sent is not None]
    assert all(b - a >= COOLDOWN_S for a, b in pairwise(sent)), sent


def _visit_of(moment: float) -> int | None:
    near = (i for i, (a, b) in enumerate(VISITS_S) if a - TOLERANCE_S <= moment <= b + TOLERANCE_S)
    return next(near, None)


def _is_due(event: Event, last_shown: dict[int, float]) -> bool:
    """Whether somebody in the picture was not shown before, or not lately, or (a change) there was somebody else."""
    if event.reason is Reason.CHANGE:
        return bool(set(last_shown) - set(event.track_ids))
    ages = [event.t_captured - last_shown.get(track_id, float("-inf")) for track_id in event.track_ids]
    return max(ages) >= (INTERVAL_S if event.reason is Reason.INTERVAL else float("inf"))

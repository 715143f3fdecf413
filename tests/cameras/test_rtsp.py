"""Live cameras against a real RTSP server, which is killed, restarted, frozen and guarded by a password."""

from __future__ import annotations

import logging
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from camera_sources.backoff import Backoff
from camera_sources.live import Deadlines
from camera_sources.rtsp import RtspSource
from tests.cameras.burned import burn_numbers, read_number
from tests.cameras.fixtures import RtspServer, free_port, require_clip
from tests.cameras.generated import write_clip
from tests.cameras.processes import capture_processes, read
from tests.cameras.running import is_down, is_live, is_stale, read_some, running, wait_for

pytestmark = pytest.mark.rtsp

PASSWORD = "p@ss:w/rd&%41"
QUICK = Deadlines(stale_s=1.0, dead_s=3.0, read_s=10.0, backoff=Backoff(first_s=0.3, max_s=1.0))
REFUSED = Deadlines(backoff=Backoff(first_s=0.3, max_s=60.0))


def test_frames_arrive_over_tcp_and_the_password_stays_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with RtspServer(user="admin", password=PASSWORD, fps=20) as server:  # it offers TCP alone
        monkeypatch.setenv("SOURCE", server.url)
        with running(RtspSource(server.url, camera_id="door", deadlines=QUICK)) as source:
            frames = read_some(source, 20)
            (pid,) = capture_processes()
            exposed = [read(pid, "cmdline"), read(pid, "environ"), repr(source.status()).encode()]
            time.sleep(1.0)  # a reader that is late gets the newest picture
            late = source.read(1.0)
            status = source.status()
    assert late is not None
    assert time.monotonic() - late.t_mono < 1.0
    assert late.seq - frames[-1].seq > 10
    assert status.num_dropped >= late.seq - frames[-1].seq - 1
    assert {frame.image.shape for frame in frames} == {(240, 320, 3)}
    for earlier, later in pairwise(frames):
        assert later.seq > earlier.seq
        assert later.t_mono > earlier.t_mono
        assert later.pts_s - earlier.pts_s == pytest.approx((later.seq - earlier.seq) / 20, abs=0.03)
    assert not frames[0].image.flags.writeable
    output = capfd.readouterr()
    exposed += [caplog.text.encode(), output.out.encode(), output.err.encode()]
    for secret in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD)):
        assert not any(secret.encode() in text for text in exposed)


def test_a_wrong_or_missing_password_is_said_and_not_hammered() -> None:
    with RtspServer(user="admin", password=PASSWORD) as server:
        for url in (server.bare_url, server.bare_url.replace("://", "://admin:wrong-secret@")):
            with running(RtspSource(url, camera_id="a", deadlines=REFUSED)) as source:
                status = wait_for(source, is_down)
                assert status.reason.startswith("authentication failed (401)")
                assert "wrong-secret" not in repr(status)
                time.sleep(0.6)  # other failures would have been tried again after 0.3 s
                assert source.status().num_reconnects == 0


def test_a_camera_that_loses_power_comes_back_by_itself_even_with_another_size() -> None:
    with RtspServer(fps=20) as server, running(RtspSource(server.url, camera_id="a", deadlines=QUICK)) as source:
        before = read_some(source, 3)
        server.kill()
        status = wait_for(source, is_down)
        assert status.reason
        assert status.num_frames > 0
        while source.read(0.0) is not None:
            pass
        assert source.read(0.3) is None  # no picture is made up
        server.restart(size="640x480")
        wait_for(source, is_live)
        after = read_some(source, 2)
        status = source.status()
    assert {frame.image.shape for frame in after} == {(480, 640, 3)}
    assert after[0].seq > before[-1].seq
    assert after[0].pts_s > before[-1].pts_s
    assert status.num_reconnects >= 1
    assert status.reason == ""


def test_a_frozen_camera_is_stale_then_down_and_recovers_while_another_goes_on() -> None:
    with (
        RtspServer(fps=20) as server,
        RtspServer(fps=20) as other,
        running(RtspSource(server.url, camera_id="frozen", deadlines=QUICK)) as frozen,
        running(RtspSource(other.url, camera_id="healthy", deadlines=QUICK)) as healthy,
        running(RtspSource(f"rtsp://127.0.0.1:{free_port()}/cam", camera_id="absent", deadlines=QUICK)) as absent,
    ):
        read_some(frozen, 2)
        first = read_some(healthy, 1)[0]
        server.freeze()
        stale = wait_for(frozen, is_stale)
        assert stale.frame_age_s is not None
        assert stale.frame_age_s >= QUICK.stale_s
        assert "no picture for" in stale.reason
        assert wait_for(frozen, is_down).reason == "no picture for 3 s"
        server.thaw()
        wait_for(frozen, is_live, 25.0)
        last = read_some(healthy, 1)[0]
        assert healthy.status().num_reconnects == 0
        assert is_down(absent.status())
        assert (last.seq - first.seq) / (last.t_mono - first.t_mono) == pytest.approx(20, rel=0.2)
    assert capture_processes() == []


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_capture_process_that_hangs_or_dies_is_replaced(number: signal.Signals) -> None:
    with RtspServer(fps=20) as server, running(RtspSource(server.url, camera_id="a", deadlines=QUICK)) as source:
        seq = read_some(source, 1)[0].seq
        (pid,) = capture_processes()
        os.kill(pid, number)
        wait_for(source, is_down)
        assert pid not in capture_processes()
        wait_for(source, is_live)
        assert read_some(source, 1)[0].seq > seq


def test_pictures_are_made_of_the_frames_asked_for_and_show_their_own_time(tmp_path: Path) -> None:
    """Of the frames between, nothing is converted or copied, but they are counted; one asked for is no old one."""
    numbered = burn_numbers(write_clip(tmp_path / "c.mp4", 200, 20, (384, 64)), tmp_path / "n.mp4", (384, 64), 20)
    asked, shown = [], []
    with RtspServer(numbered) as server, running(RtspSource(server.url, camera_id="a", deadlines=QUICK)) as source:
        for pause_s in (0.0, 0.6, 0.0, 0.0, 1.1, 0.0, 0.3):
            time.sleep(pause_s)
            asked.append(time.monotonic())
            shown += read_some(source, 1)
        status = source.status()
    assert all(frame.t_mono > t_asked - 0.2 for frame, t_asked in zip(shown[1:], asked[1:], strict=True))
    numbers = [read_number(frame.image) for frame in shown]
    assert np.diff(numbers).tolist() == np.diff([frame.seq for frame in shown]).tolist()
    assert np.diff(numbers) / 20 == pytest.approx(np.diff([frame.pts_s for frame in shown]), abs=0.03)
    assert max(np.diff(numbers)) > 15, "frames passed while nobody asked"
    assert status.num_dropped >= status.num_frames - len(shown) - 1


@pytest.mark.clips
def test_a_served_clip_loops_without_a_seam() -> None:
    clip = require_clip("test_resources_bt709_full_range.mp4")  # one second long
    with RtspServer(clip) as server, running(RtspSource(server.url, camera_id="a", deadlines=QUICK)) as source:
        frames = read_some(source, 60)
    assert {frame.image.shape for frame in frames} == {(720, 1280, 3)}
    assert max(later.pts_s - earlier.pts_s for earlier, later in pairwise(frames)) < 0.5
    assert frames[-1].t_mono - frames[0].t_mono > 1.5

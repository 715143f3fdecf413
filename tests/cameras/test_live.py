"""Live cameras against what answers badly or not at all: no RTSP server needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from camera_sources.backoff import Backoff
from camera_sources.base import SourceState
from camera_sources.capture_process import child_environment
from camera_sources.capture_protocol import Ended, Ending, Order, Passed, Picture, from_line, to_line
from camera_sources.live import Deadlines, LiveSource
from camera_sources.reasons import explain_ending
from camera_sources.rtsp import RtspSource
from tests.cameras.fixtures import free_port
from tests.cameras.processes import capture_processes, is_alive, wait_until_gone
from tests.cameras.running import is_down, running, wait_for

PASSWORD = "hunter2-correct-horse"
QUICK = Deadlines(open_s=1.5, read_s=2.0, stale_s=1.0, dead_s=3.0, backoff=Backoff(first_s=0.2, max_s=0.5))


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A URL whose server accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"rtsp://admin:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}/cam"


def test_a_closed_port_is_down_and_retried_with_backoff() -> None:
    url = f"rtsp://admin:{PASSWORD}@127.0.0.1:{free_port()}/cam"
    with running(RtspSource(url, camera_id="a", deadlines=QUICK)) as source:
        status = wait_for(source, is_down)
        assert status.reason.startswith("connection refused")
        assert status.num_frames == 0
        wait_for(source, lambda status: status.num_reconnects >= 3)
        assert is_down(source.status())  # it does not flap between attempts
        assert source.read(0.05) is None
    assert capture_processes() == []


def test_an_unknown_host_is_named_as_such() -> None:
    url = f"rtsp://admin:{PASSWORD}@no-such-camera.invalid/cam"
    with running(RtspSource(url, camera_id="a", deadlines=QUICK)) as source:
        assert "host name unknown" in wait_for(source, is_down).reason


def test_a_silent_server_is_given_up_at_the_deadline(black_hole: str) -> None:
    began = time.monotonic()
    with running(RtspSource(black_hole, camera_id="a", deadlines=QUICK)) as source:
        assert source.status().state is SourceState.CONNECTING
        status = wait_for(source, is_down)
        assert time.monotonic() - began < 5.0
        assert status.reason.startswith("no answer within 1.5 s")


@pytest.mark.parametrize("after_s", [0.0, 0.1, 1.0])
def test_stop_is_quick_while_connecting(black_hole: str, after_s: float) -> None:
    num_descriptors = len(os.listdir("/proc/self/fd"))
    source = RtspSource(black_hole, camera_id="a")
    source.start()
    time.sleep(after_s)
    began = time.monotonic()
    source.stop()
    assert time.monotonic() - began < 2.0
    assert capture_processes() == []
    assert (source.status().state, source.status().reason) == (SourceState.ENDED, "stopped")
    assert source.read(5.0) is None
    source.stop()
    assert len(os.listdir("/proc/self/fd")) == num_descriptors


def test_stop_before_start_and_during_a_read(black_hole: str) -> None:
    RtspSource(black_hole, camera_id="a").stop()
    source = RtspSource(black_hole, camera_id="a")
    source.start()
    threading.Timer(0.3, source.stop).start()
    began = time.monotonic()
    assert source.read(30.0) is None
    assert time.monotonic() - began < 2.0


def test_stop_is_quick_although_the_capture_process_hangs(black_hole: str) -> None:
    with running(RtspSource(black_hole, camera_id="a")) as source:
        wait_for(source, lambda _: bool(capture_processes()))
        (pid,) = capture_processes()
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        source.stop()
    assert time.monotonic() - began < 2.0
    assert not is_alive(pid)


def test_the_capture_process_dies_with_its_parent(black_hole: str) -> None:
    program = (
        "import sys, time; from camera_sources.rtsp import RtspSource\n"
        "RtspSource(sys.stdin.readline().strip(), camera_id='a').start(); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    parent.stdin.write(black_hole + "\n")
    parent.stdin.flush()
    deadline = time.monotonic() + 20
    while not (children := capture_processes(parent.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # into its connecting
    parent.kill()
    parent.communicate()
    assert len(children) == 1
    assert wait_until_gone(children[0], 2.0)


@pytest.mark.parametrize(
    ("code", "reason"), [(401, "authentication failed"), (403, "access forbidden"), (404, "no such stream")]
)
def test_http_cameras_give_their_reasons(code: int, reason: str) -> None:
    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://admin:{PASSWORD}@127.0.0.1:{server.server_port}/video.mjpg"
        with running(RtspSource(url, camera_id="a")) as source:
            status = wait_for(source, is_down)
        server.shutdown()
    assert status.reason.startswith(reason)
    assert PASSWORD not in repr(status)


def test_a_webcam_that_does_not_open_is_down() -> None:
    with running(LiveSource(97, camera_id="a", deadlines=QUICK)) as source:
        assert wait_for(source, is_down).reason


def test_the_capture_process_gets_no_secret_from_our_environment() -> None:
    environment = child_environment({"SOURCE": f"rtsp://u:{PASSWORD}@cam", "API_KEY": PASSWORD, "PATH": "/bin"}, "tcp")
    assert PASSWORD not in repr(environment)
    assert environment["PATH"] == "/bin"
    assert "rtsp_transport;tcp" in environment["OPENCV_FFMPEG_CAPTURE_OPTIONS"]


def test_protocol_lines_read_back() -> None:
    picture = Picture(3, 1.5, 2.5, 0.12, 64, 8, 480, 640)
    ended = Ended(Ending.NO_OPENCV, "why\nnot")
    order = Order(f"rtsp://u:{PASSWORD}@cam", 5, 1, 2.0, 3.0)
    for notice in (picture, Passed(4, 1.6, 0.16), ended):
        line = to_line(notice)
        assert line.count(b"\n") == 1
        assert from_line(line) == notice
    assert Order.from_line(order.to_line()) == order
    assert PASSWORD not in repr(order)
    for junk in (b"", b"[]", b"{}", b'{"notice": "Picture"}', b"Warning: something"):
        with pytest.raises(ValueError, match=r"notice|Expecting|column"):
            from_line(junk)


@pytest.mark.parametrize(
    ("log", "reason", "is_refusal"),
    [
        ("[rtsp @ 0x1] method DESCRIBE failed: 401 Unauthorized", "authentication failed (401)", True),
        ("[rtsp @ 0x1] method DESCRIBE failed: 404 Not Found", "no such stream on this camera (404)", False),
        ("[http @ 0x1] HTTP error 403 Forbidden", "access forbidden (403)", True),
        ("[tcp @ 0x1] Connection to tcp://h:9 failed: Connection refused", "connection refused", False),
        ("[tcp @ 0x1] Failed to resolve hostname h: Name or service not known", "host name unknown", False),
        ("[tcp @ 0x1] Connection to tcp://h:9 failed: No route to host", "host unreachable", False),
        ("[rtsp @ 0x1] method SETUP failed: 461 Unsupported transport", "the camera refuses this transport", False),
        ("nothing telling", "cannot be opened as a video stream", False),
    ],
)
def test_what_ffmpeg_says_becomes_advice(log: str, reason: str, is_refusal: bool) -> None:
    explained = explain_ending(Ending.NOT_OPENED, "", ["noise", log], open_timeout_s=6.0, waited_s=0.1)
    assert explained.text.startswith(reason)
    assert explained.is_refusal is is_refusal

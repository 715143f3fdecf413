"""What a camera may speak: RTSP over TCP and UDP, basic and digest authentication, RTSPS, MJPEG over HTTP, HLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from camera_sources.backoff import Backoff
from camera_sources.base import SourceError
from camera_sources.live import Deadlines
from camera_sources.rtsp import RtspSource
from tests.cameras.burned import burn_numbers, read_number
from tests.cameras.fixtures import RtspServer, require_clip
from tests.cameras.http_cameras import HlsServer, MjpegServer
from tests.cameras.running import is_down, is_live, is_stale, read_some, running, wait_for

PASSWORD = "p@ss:w/rd&%41"
QUICK = Deadlines(stale_s=1.0, dead_s=2.5, backoff=Backoff(first_s=0.3, max_s=1.0))


def frames_of(path: Path) -> list[NDArray[np.uint8]]:
    """Every frame of a clip."""
    clip, frames = cv2.VideoCapture(str(path)), []
    while (read := clip.read())[0]:
        frames.append(np.asarray(read[1], np.uint8))
    return frames


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key, as cameras come with one."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=camera",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return both


@pytest.mark.rtsp
def test_digest_authentication_works_and_a_wrong_password_is_said() -> None:
    with RtspServer(user="admin", password=PASSWORD, auth="digest", fps=20) as server:
        with running(RtspSource(server.url, camera_id="a")) as source:
            read_some(source, 3)
        wrong = server.bare_url.replace("://", "://admin:wrong@")
        with running(RtspSource(wrong, camera_id="a", deadlines=QUICK)) as source:
            assert wait_for(source, is_down).reason.startswith("authentication failed (401)")


@pytest.mark.rtsp
def test_udp_is_used_where_it_is_asked_for_and_only_there() -> None:
    with RtspServer(transport="udp", fps=20) as server:
        with running(RtspSource(server.url, camera_id="a", transport="udp")) as source:
            read_some(source, 3)
        with running(RtspSource(server.url, camera_id="a", deadlines=QUICK)) as source:
            assert "try the other of tcp and udp" in wait_for(source, is_down).reason


@pytest.mark.rtsp
@pytest.mark.clips
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_frames_with_holes_never_become_pictures(transport: str, tmp_path: Path) -> None:
    """Where data get lost, ffmpeg patches frames up and delivers them; what arrives here is as it was sent."""
    size = (768, 432)
    numbered = burn_numbers(require_clip("one-by-one-person-detection.mp4"), tmp_path / "n.mp4", size, 10, seconds=12)
    sent = frames_of(numbered)
    with (
        RtspServer(numbered, transport=transport, damage=7) as server,
        running(RtspSource(server.url, camera_id="a", transport=transport)) as source,
    ):
        shown = read_some(source, 1)
        while shown[-1].seq < 90:
            shown += read_some(source, 1)
    for frame in shown:
        original = sent[read_number(frame.image)]
        blocks = np.abs(frame.image.astype(int) - original).reshape(29, 16, 48, 16, 3).mean(axis=(1, 3, 4))
        assert blocks.max() < 3, "one block of 16 x 16 that differs is a hole"
    assert 10 < len(shown) < 75, "some were left out, since data were lost, and some were whole"


def test_an_unknown_transport_is_named_without_the_password() -> None:
    with pytest.raises(SourceError, match="unknown transport 'carrier pigeon'; use one of tcp, udp") as caught:
        RtspSource("rtsp://admin:hunter2@camera/live", camera_id="a", transport="carrier pigeon")
    assert "hunter2" not in str(caught.value)


@pytest.mark.rtsp
def test_rtsps_is_read_behind_a_certificate_of_the_cameras_own(certificate: Path) -> None:
    with RtspServer(user="admin", password=PASSWORD, certificate=certificate, fps=20) as server:
        assert server.url.startswith("rtsps://")
        with running(RtspSource(server.url, camera_id="a")) as source:
            read_some(source, 3)


def test_an_mjpeg_camera_is_read_and_recovers_from_everything() -> None:
    """Frozen it is stale, then down; broken off it is reconnected to; back with another size its pictures have it."""
    with MjpegServer(password="hunter2") as camera:
        with running(RtspSource(camera.url, camera_id="a", deadlines=QUICK)) as source:
            assert read_some(source, 5)[-1].image.shape == (240, 320, 3)
            camera.frozen.set()
            wait_for(source, is_stale)
            assert "hunter2" not in repr(wait_for(source, is_down))
            camera.size = (640, 480)
            camera.frozen.clear()
            wait_for(source, is_live)
            num_reconnects = source.status().num_reconnects
            camera.break_off()
            wait_for(source, lambda status: is_live(status) and status.num_reconnects > num_reconnects)
            assert read_some(source, 2)[-1].image.shape == (480, 640, 3)
        with running(RtspSource(camera.bare_url, camera_id="a", deadlines=QUICK)) as source:
            assert wait_for(source, is_down).reason.startswith("authentication failed (401)")


def test_an_hls_stream_is_read(tmp_path: Path) -> None:
    if shutil.which("ffmpeg") is None:
        pytest.skip("no ffmpeg to make a stream with")
    with HlsServer(tmp_path) as camera, running(RtspSource(camera.url, camera_id="a")) as source:
        frames = read_some(source, 12)
    assert frames[-1].pts_s > frames[0].pts_s
    assert frames[-1].image.shape == (240, 320, 3)

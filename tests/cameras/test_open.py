from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from camera_sources.base import SourceError
from camera_sources.images import ImagesSource
from camera_sources.open import open_source
from camera_sources.rtsp import RtspSource
from camera_sources.video import VideoSource
from camera_sources.webcam import WebcamSource
from tests.cameras.generated import write_clip


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("rtsp://cam/live", RtspSource),
        ("rtsps://u:p@cam/live", RtspSource),
        ("RTSP://cam/live", RtspSource),
        ("http://cam/video.mjpg", RtspSource),
        (" rtsp://cam/live\n", RtspSource),
        ("0", WebcamSource),
        ("/dev/video3", WebcamSource),
    ],
)
def test_live_sources_by_name(source: str, kind: type) -> None:
    opened = open_source(source, camera_id="a")
    assert type(opened) is kind
    assert opened.is_live
    assert opened.camera_id == "a"


def test_files_and_folders_by_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 2)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    monkeypatch.chdir(tmp_path)
    for source, kind in (
        (str(clip), VideoSource),
        ("clip.mp4", VideoSource),
        (clip.as_uri(), VideoSource),
        (str(tmp_path), ImagesSource),
        ("one.png", ImagesSource),
    ):
        opened = open_source(source, camera_id="a", realtime=False)
        assert type(opened) is kind
        assert not opened.is_live
        opened.start()
        assert opened.read(1.0) is not None
        opened.stop()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "source is empty"),
        ("nowhere.mp4", "nowhere.mp4: no such file or directory"),
        ("x" * 5000, "file name too long"),
        ("nul\0byte", "not a path"),
        ("gopher://u:hunter2@cam/x", "unknown scheme 'gopher'"),
        ("rtsp://u:hunter2@/x", "no host"),
    ],
)
def test_what_cannot_be_opened_is_one_line(source: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as raised:
        open_source(source, camera_id="a")
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_names_that_are_no_text_never_reach_opencv(tmp_path: Path) -> None:
    """It would crash the process, so the crash must stay in one of its own if it comes back."""
    clip = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.mp4")
    write_clip(tmp_path / "b.mp4", 2).rename(clip)
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9t\xe9")
    os.mkdir(folder)
    Image.new("RGB", (8, 8)).save(Path(folder) / "one.png")
    program = (
        "import sys; from camera_sources.base import SourceError\n"
        "from camera_sources.open import open_source; from camera_sources.video import VideoSource\n"
        "for make in (lambda: VideoSource(sys.argv[1], camera_id='a'), *(lambda s=s: open_source(s, camera_id='a')"
        " for s in sys.argv[1:])):\n"
        "    try: make().start()\n"
        "    except SourceError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, clip, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    problem = "the name is not valid UTF-8 text; rename it"
    assert done.stdout.splitlines() == [
        rf"{tmp_path}/b\xff.mp4: {problem}",
        rf"{tmp_path}/b\xff.mp4: {problem}",
        rf"{tmp_path}/\xe9t\xe9: {problem}",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_pictures_whose_names_are_no_text_are_shown_and_named_printably(tmp_path: Path) -> None:
    good, torn = (Path(os.fsdecode(os.fsencode(tmp_path) + name)) for name in (b"/a\xff.png", b"/b\xff.png"))
    with good.open("wb") as file:
        Image.new("RGB", (8, 8)).save(file, "png")
    torn.write_bytes(b"no picture")
    source = open_source(str(tmp_path), camera_id="a", realtime=False)
    source.start()
    assert source.read(1.0) is not None
    assert source.read(1.0) is None
    assert r"last b\xff.png:" in source.status().reason
    source.stop()


@pytest.mark.skipif(os.path.exists("/dev/video97"), reason="there is a webcam 97")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere webcams have no device files")
def test_a_webcam_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match="webcam 97: there is no /dev/video97"):
        open_source("97", camera_id="a").start()


def test_missing_libgl_is_one_line_with_the_cure(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 2)
    (tmp_path / "cv2.py").write_text(
        "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')"
    )
    program = (
        "import sys; from camera_sources.base import SourceError; from camera_sources.open import open_source\n"
        "try: open_source(sys.argv[1], camera_id='a').start()\n"
        "except SourceError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program, str(clip)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert "libGL.so.1" in done.stdout
    assert "libgl1" in done.stdout
    assert "opencv-python-headless" in done.stdout
    assert done.stdout.count("\n") == 1


def test_missing_libgl_is_found_whatever_is_watched(tmp_path: Path) -> None:
    """Pillow reads folders of pictures, but what is sent on passes through OpenCV."""
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "camera_sources.check"]
    for sources in ([], [str(tmp_path)]):
        done = subprocess.run(
            command, input=json.dumps(sources), env=environment, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (2, "")
        assert done.stdout.startswith("OpenCV cannot start: libGL.so.1")
        assert done.stdout.count("\n") == 1

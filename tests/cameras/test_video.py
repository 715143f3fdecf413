from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from camera_sources.base import SourceError, SourceState
from camera_sources.clip_av import AvClip
from camera_sources.clip_opencv import OpenCvClip
from camera_sources.frame import Frame
from camera_sources.video import VideoSource
from tests.cameras.fixtures import ManifestClip, clips, require_clip
from tests.cameras.generated import index_of, write_clip


def read_all(source: VideoSource, limit: int = 100_000) -> list[Frame]:
    frames = []
    while len(frames) < limit and (frame := source.read(5.0)) is not None:
        frames.append(frame)
    return frames


def grows(values: list[float]) -> bool:
    return all(earlier < later for earlier, later in pairwise(values))


def test_unpaced_every_frame_once_in_order_and_then_the_end(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.mp4", 60), camera_id="a", realtime=False)
    source.start()
    frames = []
    while (frame := source.read(1.0)) is not None:
        frames.append(frame)
        if len(frames) == 20:
            time.sleep(0.5)  # a slow reader makes the file wait
    assert [frame.seq for frame in frames] == list(range(60))
    assert [index_of(frame.image) for frame in frames] == pytest.approx(list(range(60)), abs=2)
    assert [frame.pts_s for frame in frames] == pytest.approx([i / 25 for i in range(60)], abs=0.002)
    status = source.status()
    assert (status.state, status.reason, status.num_frames, status.num_dropped) == (SourceState.ENDED, "", 60, 0)
    assert source.read(0.0) is None
    source.stop()


def test_frames_are_what_a_frame_must_be(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.avi", 3), camera_id="door", realtime=False)
    before = time.monotonic(), time.time()
    source.start()
    frame = source.read(1.0)
    after = time.monotonic(), time.time()
    source.stop()
    assert frame is not None
    assert frame.camera_id == "door"
    assert (frame.image.shape, frame.image.dtype) == ((64, 128, 3), np.uint8)
    assert before[0] <= frame.t_mono <= after[0]
    assert before[1] <= frame.t_wall <= after[1]
    with pytest.raises(ValueError, match="read-only"):
        frame.image[0] = 0


def test_paced_frames_come_when_they_are_due(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.mp4", 20, fps=20), camera_id="a")
    source.start()
    frames = read_all(source)
    late = [(f.t_mono - frames[0].t_mono) - (f.pts_s - frames[0].pts_s) for f in frames]
    assert len(frames) + source.status().num_dropped == 20
    assert len(frames) > 10
    assert min(late) > -0.005
    assert sorted(late)[len(late) // 2] < 0.1


def test_paced_a_slow_reader_sees_what_a_live_viewer_would(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.mp4", 60, fps=30), camera_id="a")
    source.start()
    frames = []
    while (frame := source.read(1.0)) is not None:
        frames.append(frame)
        time.sleep(0.2)
    status = source.status()
    assert 5 <= len(frames) <= 14  # two seconds at one frame per 0.2 s
    assert status.num_frames == 60
    assert status.num_dropped == 60 - len(frames)
    assert [index_of(frame.image) for frame in frames] == pytest.approx([frame.seq for frame in frames], abs=2)
    for frame in frames[1:]:
        assert frame.t_mono - frames[0].t_mono == pytest.approx(frame.pts_s - frames[0].pts_s, abs=0.3)


def test_paced_reads_respect_their_timeout(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.mp4", 4, fps=1), camera_id="a")
    source.start()
    assert source.read(0.1) is not None
    began = time.monotonic()
    assert source.read(0.2) is None
    assert 0.15 < time.monotonic() - began < 0.6
    frame = source.read(2.0)
    assert frame is not None
    assert frame.seq == 1
    source.stop()


def test_a_loop_keeps_growing_and_never_ends(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.mp4", 10), camera_id="a", loop=True, realtime=False)
    source.start()
    frames = read_all(source, limit=35)
    assert [frame.seq for frame in frames] == list(range(35))
    assert [frame.pts_s for frame in frames] == pytest.approx([i / 25 for i in range(35)], abs=0.005)
    assert [index_of(frame.image) for frame in frames] == pytest.approx([i % 10 for i in range(35)], abs=2)
    assert source.status().state is SourceState.LIVE
    source.stop()
    assert source.status().state is SourceState.ENDED


def test_a_loop_whose_file_vanishes_ends_with_the_reason(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 5)
    source = VideoSource(path, camera_id="a", loop=True, realtime=False)
    source.start()
    path.unlink()
    assert len(read_all(source, limit=50)) == 5
    assert source.status().state is SourceState.ENDED
    assert "no such file" in source.status().reason


def test_stop_wakes_a_waiting_reader(tmp_path: Path) -> None:
    source = VideoSource(write_clip(tmp_path / "clip.mp4", 3, fps=1), camera_id="a")
    source.start()
    assert source.read(1.0) is not None
    threading.Timer(0.2, source.stop).start()
    began = time.monotonic()
    assert source.read(30.0) is None
    assert time.monotonic() - began < 1.0
    assert (source.status().state, source.status().reason) == (SourceState.ENDED, "stopped")
    source.stop()


def test_a_file_cut_short_says_so(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.avi", 80)
    cut = tmp_path / "cut.avi"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    source = VideoSource(cut, camera_id="a", realtime=False)
    source.start()
    frames = read_all(source)
    assert 20 < len(frames) < 60
    assert source.status().state is SourceState.ENDED
    assert source.status().reason == f"cut.avi breaks off after {len(frames)} of 80 frames"


def test_damage_in_the_middle_is_not_the_end(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.avi", 80)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 5000] = np.random.default_rng(0).bytes(5000)
    path.write_bytes(data)
    source = VideoSource(path, camera_id="a", realtime=False)
    source.start()
    frames = read_all(source)
    assert index_of(frames[-1].image) == pytest.approx(79, abs=2)
    assert grows([frame.pts_s for frame in frames])


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such file"), (b"", "empty"), (b"this is not a video\n" * 100, "not a video")],
)
def test_what_is_no_video_is_refused_in_one_line(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "clip.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=problem) as raised:
        VideoSource(path, camera_id="a").start()
    assert "clip.mp4" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_opencv_and_ffmpeg_print_nothing(tmp_path: Path) -> None:
    (tmp_path / "junk.mp4").write_bytes(b"junk" * 1000)
    program = (
        "import cv2\n"  # somebody else was first
        "from camera_sources.video import VideoSource\n"
        "try: VideoSource('junk.mp4', camera_id='a').start()\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("SourceError\n", "")


@pytest.mark.clips
@pytest.mark.skipif(not clips(), reason="WATCHWORD_TEST_DATA is unset: no clips")
@pytest.mark.parametrize("clip", clips(), ids=lambda clip: clip.path.name)
def test_every_real_clip_is_read_to_its_end(clip: ManifestClip) -> None:
    source = VideoSource(clip.path, camera_id="a", realtime=False)
    source.start()
    num_frames, times, shapes = 0, [], set()
    while (frame := source.read(5.0)) is not None:
        num_frames += 1
        times.append(frame.pts_s)
        shapes.add(frame.image.shape)
    width, height = (clip.height, clip.width) if abs(clip.rotation) == 90 else (clip.width, clip.height)
    assert num_frames == pytest.approx(clip.num_frames, abs=1)
    assert shapes == {(height, width, 3)}
    assert grows(times)
    assert (source.status().state, source.status().reason) == (SourceState.ENDED, "")


@pytest.mark.clips
@pytest.mark.parametrize(
    ("name", "turn"),
    [("0", None), ("90", cv2.ROTATE_90_CLOCKWISE), ("180", cv2.ROTATE_180), ("270", cv2.ROTATE_90_COUNTERCLOCKWISE)],
)
def test_rotation_metadata_is_applied_exactly_once(name: str, turn: int | None) -> None:
    path = require_clip(f"tests_test_data_video_{name}.mov")
    stored = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    stored.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    _, image = stored.read()
    assert image.shape == (320, 568, 3)
    source = VideoSource(path, camera_id="a", realtime=False)
    source.start()
    frame = source.read(1.0)
    source.stop()
    assert frame is not None
    assert np.array_equal(frame.image, image if turn is None else cv2.rotate(image, turn))


@pytest.mark.clips
@pytest.mark.parametrize("name", ["tests_test_data_video_90.mov", "demo_demo.mp4", "tests_test_data_corrupted.mp4"])
def test_both_decoders_see_the_same(name: str) -> None:
    path = require_clip(name)
    one, other = OpenCvClip(path), AvClip(path)
    while (time_s := one.grab()) is not None:
        assert other.grab() == pytest.approx(time_s, abs=1e-3)
        pictures = one.picture(), other.picture()
        assert pictures[0] is not None
        assert pictures[1] is not None
        assert pictures[0].shape == pictures[1].shape
        assert np.abs(pictures[0].astype(int) - pictures[1]).mean() < 3
    assert one.num_frames > 0
    one.close()
    other.close()


@pytest.mark.clips
def test_variable_frame_rates_keep_their_times() -> None:
    """As ffprobe lists them: 30 fps with gaps, though the container's average is 28.05 fps."""
    source = VideoSource(require_clip("demo_demo_skeleton.mp4"), camera_id="a", loop=True, realtime=False)
    source.start()
    both = [frame.pts_s for frame in read_all(source, limit=144)]
    source.stop()
    times, again = both[:72], both[72:]
    assert np.diff(again) == pytest.approx(np.diff(times))
    assert times[:4] == pytest.approx([0.0, 0.033333, 0.066667, 0.1], abs=1e-4)
    assert times[-4:] == pytest.approx([2.433333, 2.466667, 2.5, 2.533333], abs=1e-4)
    assert max(np.diff(times)) > 0.06

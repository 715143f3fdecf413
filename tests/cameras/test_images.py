from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from camera_sources.base import SourceError, SourceState
from camera_sources.images import ImagesSource, load_image

RED, WHITE = (255, 0, 0), (255, 255, 255)


def put(folder: Path, name: str, color: tuple[int, int, int] = RED, size: tuple[int, int] = (32, 16)) -> Path:
    path = folder / name
    Image.new("RGB", size, color).save(path)
    return path


def read_all(source: ImagesSource, limit: int = 100) -> list[int]:
    """The gray levels of what comes, which the tests use as names."""
    names = []
    while len(names) < limit and (frame := source.read(2.0)) is not None:
        names.append(round(float(frame.image.mean())))
    return names


def test_images_come_in_natural_order_once_one_second_apart(tmp_path: Path) -> None:
    for index in (10, 9, 2, 1, 100):
        put(tmp_path, f"shot{index}.png", (index, index, index))
    (tmp_path / "notes.txt").write_text("not an image")
    put(tmp_path, ".hidden.png", WHITE)
    (tmp_path / "sub").mkdir()
    put(tmp_path / "sub", "shot3.png", WHITE)
    source = ImagesSource(tmp_path, camera_id="a", realtime=False)
    source.start()
    frames = [frame for _ in range(5) if (frame := source.read(1.0)) is not None]
    assert [int(frame.image.max()) for frame in frames] == [1, 2, 9, 10, 100]
    assert [(frame.seq, frame.pts_s) for frame in frames] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert source.read(1.0) is None
    status = source.status()
    assert (status.state, status.reason, status.num_frames, status.num_dropped) == (SourceState.ENDED, "", 5, 0)


def test_paced_images_wait_for_their_time_and_miss_nothing(tmp_path: Path) -> None:
    for index in range(4):
        put(tmp_path, f"{index}.jpg")
    source = ImagesSource(tmp_path, camera_id="a", fps=10)
    source.start()
    times = []
    while (frame := source.read(1.0)) is not None:
        times.append(frame.t_mono)
        if len(times) == 2:
            time.sleep(0.3)
            assert source.status().state is SourceState.LIVE
    assert len(times) == 4
    assert min(np.diff(times)) > 0.095


def test_the_default_pace_is_one_a_second(tmp_path: Path) -> None:
    put(tmp_path, "1.png")
    put(tmp_path, "2.png")
    source = ImagesSource(tmp_path, camera_id="a")
    source.start()
    assert source.read(1.0) is not None
    assert source.read(0.1) is None
    second = source.read(1.5)
    assert second is not None
    assert second.seq == 1


def test_unreadable_files_are_skipped_counted_and_named(tmp_path: Path) -> None:
    put(tmp_path, "1.png", (1, 1, 1))
    (tmp_path / "2.png").write_bytes(b"not a PNG")
    whole = put(tmp_path, "3.jpg", size=(200, 200)).read_bytes()
    (tmp_path / "3.jpg").write_bytes(whole[: len(whole) // 2])
    put(tmp_path, "4.png", (4, 4, 4))
    source = ImagesSource(tmp_path, camera_id="a", realtime=False)
    source.start()
    assert read_all(source) == [1, 4]
    status = source.status()
    assert (status.state, status.num_frames, status.num_dropped) == (SourceState.ENDED, 2, 2)
    assert status.reason.startswith("skipped 2 unreadable, last 3.jpg: ")


def test_a_loop_goes_round_with_growing_times(tmp_path: Path) -> None:
    put(tmp_path, "1.png", (1, 1, 1))
    put(tmp_path, "2.png", (2, 2, 2))
    source = ImagesSource(tmp_path, camera_id="a", loop=True, realtime=False)
    source.start()
    assert read_all(source, limit=5) == [1, 2, 1, 2, 1]
    frame = source.read(1.0)
    assert frame is not None
    assert (frame.seq, frame.pts_s) == (5, 5.0)
    source.stop()
    assert (source.read(1.0), source.status().state) == (None, SourceState.ENDED)


def test_a_loop_of_nothing_readable_ends(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"junk")
    source = ImagesSource(tmp_path, camera_id="a", loop=True, realtime=False)
    source.start()
    assert read_all(source) == []
    assert source.status().state is SourceState.ENDED


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(SourceError, match="no images in this folder") as raised:
        ImagesSource(tmp_path, camera_id="a").start()
    assert str(tmp_path) in str(raised.value)


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), WHITE)
    image.paste(RED, (0, 0, 20, 20))  # left half red
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    image.save(tmp_path / "phone.png", exif=exif)
    turned = load_image(tmp_path / "phone.png")
    assert turned.shape == (40, 20, 3)
    assert turned[5, 10].tolist() == [0, 0, 255]  # top half red, in BGR
    assert turned[35, 10].tolist() == [255, 255, 255]


def test_transparency_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (load_image(tmp_path / "clear.png") == 255).all()


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 0x8000, np.uint16)).save(tmp_path / "deep.png")
    assert load_image(tmp_path / "deep.png").mean() == pytest.approx(127.5, abs=1)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif", "tif"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    image = load_image(put(tmp_path, f"x.{suffix}"))
    assert image.shape == (16, 32, 3)
    assert image.mean(axis=(0, 1)) == pytest.approx([0, 0, 255], abs=3)


def test_an_image_beyond_the_bound_is_not_decoded(tmp_path: Path) -> None:
    Image.new("1", (10_000, 10_000)).save(tmp_path / "bomb.png")
    began = time.monotonic()
    with pytest.raises(ValueError, match="10000x10000"):
        load_image(tmp_path / "bomb.png")
    assert time.monotonic() - began < 0.5

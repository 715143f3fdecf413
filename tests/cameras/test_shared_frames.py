from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from camera_sources.shared_frames import NUM_SLOTS, FrameReader, FrameWriter, copy_picture, create_memory

SMALL, LARGE = (4, 6, 3), (40, 60, 3)


@pytest.fixture
def memory() -> Iterator[int]:
    fd = create_memory()
    yield fd
    os.close(fd)


def write(writer: FrameWriter, shape: tuple[int, int, int], value: int) -> tuple[int, int]:
    writer.begin(shape)[:] = value
    return writer.commit()


def test_a_picture_arrives_as_it_was_written(memory: int) -> None:
    writer, reader = FrameWriter(memory), FrameReader(memory)
    picture = np.random.default_rng(0).integers(0, 255, SMALL, np.uint8)
    writer.begin(SMALL)[:] = picture
    offset, stamp = writer.commit()
    received = copy_picture(reader.mapping(offset, SMALL), offset, stamp, SMALL)
    assert received is not None
    assert np.array_equal(received, picture)


def test_a_picture_lasts_until_its_slot_comes_round(memory: int) -> None:
    writer, reader = FrameWriter(memory), FrameReader(memory)
    offset, stamp = write(writer, SMALL, 1)
    mapping = reader.mapping(offset, SMALL)
    for value in range(2, NUM_SLOTS + 1):
        write(writer, SMALL, value)
        assert copy_picture(mapping, offset, stamp, SMALL) is not None
    writer.begin(SMALL)  # half written is as good as gone
    assert copy_picture(mapping, offset, stamp, SMALL) is None
    writer.commit()
    assert copy_picture(mapping, offset, stamp, SMALL) is None


def test_the_size_may_change_at_any_time(memory: int) -> None:
    writer, reader = FrameWriter(memory), FrameReader(memory)
    before = write(writer, SMALL, 7)
    old_mapping = reader.mapping(before[0], SMALL)
    for shape, value in ((LARGE, 8), (SMALL, 9), (LARGE, 10)):
        offset, stamp = write(writer, shape, value)
        image = copy_picture(reader.mapping(offset, shape), offset, stamp, shape)
        assert image is not None
        assert image.shape == shape
        assert (image == value).all()
    survivor = copy_picture(old_mapping, *before, SMALL)  # larger ones went behind it, not over it
    assert survivor is not None
    assert (survivor == 7).all()


def test_a_picture_beyond_the_memory_is_refused(memory: int) -> None:
    writer, reader = FrameWriter(memory), FrameReader(memory)
    write(writer, SMALL, 1)
    with pytest.raises(ValueError, match="outside"):
        reader.mapping(1_000_000, SMALL)

"""What the backend is shown: a cut towards the people, of sane shape, as JPEG."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, cast

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import CameraConfig
from pipeline.events import Box, Reason
from pipeline.prompt import MAX_ASPECT, MIN_SIDE, build_job, crop_to_people, encode_jpeg, message
from tests.unit.pipeline.fakes import frame, job, track
from tests.unit.pipeline.running import CONFIG

PADDING = 0.35


def picture(width: int, height: int) -> np.ndarray:
    """Every pixel tells where it is."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([columns % 256, rows % 256, (columns // 256) * 16 + rows // 256], axis=2).astype(np.uint8)


@given(data=st.data(), width=st.integers(64, 2200), height=st.integers(64, 1400), count=st.integers(1, 3))
def test_a_cut_holds_every_person_and_keeps_its_shape(data: st.DataObject, width: int, height: int, count: int) -> None:
    boxes = []
    for _ in range(count):
        x1, y1 = data.draw(st.floats(0, width - 4)), data.draw(st.floats(0, height - 4))
        boxes.append(
            Box(x1, y1, data.draw(st.floats(x1 + 2, width)), data.draw(st.floats(y1 + 2, height)), 0.9)
        )  # fmt: skip
    image = np.zeros((height, width, 3), dtype=np.uint8)
    for box in boxes:
        image[int(box.y1) : int(np.ceil(box.y2)), int(box.x1) : int(np.ceil(box.x2))] = 255
    cut = crop_to_people(image, tuple(boxes), PADDING)
    assert int(cut.sum()) == int(image.sum()), "nobody is cut off"
    cut_h, cut_w = cut.shape[:2]
    assert cut_w >= min(MIN_SIDE, width)
    assert cut_h >= min(MIN_SIDE, height)
    if cut_w < width and cut_h < height:
        assert max(cut_w, cut_h) / min(cut_w, cut_h) <= MAX_ASPECT + 0.02


def test_the_cut_is_where_the_person_is() -> None:
    cut = crop_to_people(picture(1920, 1080), (Box(1500, 400, 1600, 700, 0.9),), PADDING)
    assert cut.shape[0] < 600
    assert cut.shape[1] < 500
    column, row, blocks = (int(value) for value in cut[0, 0])
    left, top = column + 256 * (blocks // 16), row + 256 * (blocks % 16)
    person_x, person_y = 1550 - left, 550 - top
    assert person_x == pytest.approx(cut.shape[1] / 2, abs=3)
    assert person_y == pytest.approx(cut.shape[0] / 2, abs=3)


def test_people_who_fill_the_frame_get_the_whole_frame() -> None:
    image = picture(640, 480)
    assert crop_to_people(image, (Box(50, 20, 600, 470, 0.9),), PADDING) is image
    assert crop_to_people(image, (), PADDING) is image


@pytest.mark.parametrize(
    ("size", "expected"), [((3840, 2160), (1280, 720)), ((1080, 1920), (720, 1280)), ((300, 200), (300, 200))]
)
def test_the_longer_side_is_bounded(size: tuple[int, int], expected: tuple[int, int]) -> None:
    decoded = cv2.imdecode(np.frombuffer(encode_jpeg(picture(*size), 1280, 90), np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    assert (decoded.shape[1], decoded.shape[0]) == expected


def test_the_message_is_the_picture_and_then_the_words() -> None:
    selection = replace(job("e", [1], Reason.NEW_TRACK).selection, frame=frame(size=(1920, 1080)), tracks=(track(1),))
    built = build_job(selection, CameraConfig("cam", "scripted"), CONFIG)
    said = message(built)
    assert said["role"] == "user"
    image, words = cast(Any, said["content"])
    head, _, data = image["image_url"]["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    assert base64.b64decode(data) == built.jpeg
    assert built.jpeg[:2] == b"\xff\xd8"
    assert words == {"type": "text", "text": "Describe the image."}

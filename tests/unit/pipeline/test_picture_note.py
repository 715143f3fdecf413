"""A picture says where in its frame it was cut, and stays the picture that it was."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.picture_note import Cut, cut_of, read_note, with_note
from pipeline.prompt import encode_jpeg

FRAME = np.random.default_rng(3).integers(0, 255, (240, 320, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("top", "bottom", "left", "right"), [(0, 240, 0, 320), (10, 100, 7, 300), (239, 240, 319, 320)]
)
def test_a_cut_is_found_in_its_frame_and_read_back(top: int, bottom: int, left: int, right: int) -> None:
    view = FRAME[top:bottom, left:right]
    cut = cut_of(FRAME, view)
    assert cut == Cut(left, top, right - left, bottom - top)
    plain = encode_jpeg(view, 1280, 90)
    noted = with_note(plain, cut)
    assert read_note(noted) == cut
    with Image.open(io.BytesIO(plain)) as before, Image.open(io.BytesIO(noted)) as after:
        assert before.tobytes() == after.tobytes()


def test_what_has_no_note_has_none() -> None:
    plain = encode_jpeg(FRAME, 1280, 90)
    for jpeg in (plain, b"", b"\xff\xd8\xff\xfe", b"\xff\xd8\xff\xfe\x00\x04hi", with_note(plain, Cut(0, 0, 0, 0))):
        assert read_note(jpeg) is None
    with pytest.raises(ValueError, match="no part"):
        cut_of(FRAME, np.zeros((5, 5, 3), np.uint8))

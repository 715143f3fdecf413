"""The image contract as a table: every orientation, shape, kind of animation and fault, in every format that has it."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from tests.unit.engine.test_image_input import decode, encoded, pixel, refused, scene, uri

FORMATS = ["JPEG", "PNG", "WEBP", "BMP", "GIF"]
TURN = Image.Transpose
STORED = {
    1: None,
    2: TURN.FLIP_LEFT_RIGHT,
    3: TURN.ROTATE_180,
    4: TURN.FLIP_TOP_BOTTOM,
    5: TURN.TRANSPOSE,
    6: TURN.ROTATE_90,
    7: TURN.TRANSVERSE,
    8: TURN.ROTATE_270,
}
"""How a camera that was held so has stored an upright picture."""


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_comes_upright(orientation: int, kind: str) -> None:
    upright = scene(48, 32)
    turn = STORED[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 98, "subsampling": 0}, "PNG": {}, "WEBP": {"lossless": True}}[kind]
    image = decode(uri(encoded(stored, kind, exif=exif, **options)))
    assert image.size == upright.size
    assert np.abs(np.asarray(image, np.float64) - np.asarray(upright)).mean() < 2


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_seen(kind: str) -> None:
    red, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
    options = {"lossless": True} if kind == "WEBP" else {}
    image = decode(uri(encoded(red, kind, save_all=True, append_images=[blue], duration=100, **options)))
    assert pixel(image, 4, 4) == (255, 0, 0)


def test_a_progressive_jpeg_is_one_like_others() -> None:
    whole, progressive = (
        np.asarray(decode(uri(encoded(scene(64, 48), "JPEG", progressive=flag))), np.float64) for flag in (False, True)
    )
    assert np.abs(whole - progressive).max() <= 2


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1)])
def test_lines_and_points_are_images(kind: str, size: tuple[int, int]) -> None:
    image = decode(uri(encoded(Image.new("RGB", size, (250, 250, 250)), kind)))
    assert (image.mode, image.size) == ("RGB", size)
    assert np.allclose(pixel(image, 0, 0), 250, atol=6)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF"])
def test_a_palette_is_looked_up(kind: str) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert pixel(decode(uri(encoded(image, kind))), 2, 2) == (10, 200, 30)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_what_is_cut_short_is_refused(kind: str, kept: float) -> None:
    payload = encoded(scene(120, 90), kind)
    assert "damaged or cut short" in (said := refused(uri(payload[: int(len(payload) * kept)]))) or "readable" in said


def bomb(kind: str) -> bytes:
    """A few bytes that promise 60,000 times 60,000 pixels."""
    side = 60_000
    if kind == "BMP":
        return struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 100, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(
            64
        )
    if kind == "GIF":
        frame = struct.pack("<BHHHHB", 0x2C, 0, 0, side, side, 0)
        return b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6) + frame + b"\x02\x02\x44\x01\x00;"
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    payload = bytearray(buffer.getvalue())
    at = payload.index(b"\xff\xc0") + 5
    payload[at : at + 4] = struct.pack(">HH", side, side)
    return bytes(payload)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG"])
def test_a_bomb_is_refused_by_its_header(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(image: Image.Image) -> None:
        raise AssertionError("it was decoded")

    text = uri(bomb(kind))
    monkeypatch.setattr(Image.Image, "load", load)
    assert "1000000 pixels" in refused(text)

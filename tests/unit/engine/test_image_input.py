"""The image contract, format by format and fault by fault."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from backend.errors import Rejected
from backend.image_input import REDUCING_GAP, open_image

PARAM = "messages[0].content[1].image_url"


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def uri(payload: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(payload).decode()


def decode(text: str, max_pixels: int = 1_000_000) -> Image.Image:
    return open_image(text, param=PARAM, max_pixels=max_pixels).decode()


def pixel(image: Image.Image, x: int, y: int) -> Any:
    return image.getpixel((x, y))


def refused(text: str, max_pixels: int = 1_000_000) -> str:
    with pytest.raises(Rejected) as caught:
        decode(text, max_pixels)
    assert caught.value.param == PARAM
    assert str(caught.value).startswith(PARAM)
    assert "\n" not in str(caught.value)
    return str(caught.value)


HALVES = Image.new("RGB", (32, 16), (200, 10, 10))
HALVES.paste((10, 10, 200), (16, 0, 32, 16))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_formats(kind: str) -> None:
    image = decode(uri(encoded(HALVES, kind)))
    assert (image.mode, image.size) == ("RGB", (32, 16))
    assert np.allclose(pixel(image, 4, 8), (200, 10, 10), atol=12)
    assert np.allclose(pixel(image, 28, 8), (10, 10, 200), atol=12)


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "TGA"])
def test_other_formats_are_refused(kind: str) -> None:
    assert "not a readable JPEG, PNG, WebP, BMP or GIF" in refused(uri(encoded(HALVES, kind)))


def test_the_first_frame_of_a_gif() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    image = decode(uri(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])))
    assert image.getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(("orientation", "top_left"), [(1, "red"), (3, "blue"), (6, "red"), (8, "blue")])
def test_exif_orientation_is_applied(orientation: int, top_left: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode(uri(encoded(HALVES, "JPEG", quality=95, exif=exif)))
    assert image.size == ((32, 16) if orientation < 5 else (16, 32))
    red, _, blue = pixel(image, 2, 2)
    assert (red > blue) == (top_left == "red")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_alpha_is_composited_on_white(mode: str) -> None:
    if mode == "P":
        image = Image.new("P", (4, 4), 0)
        image.putpalette([0, 0, 0])
        payload = encoded(image, "PNG", transparency=0)
    else:
        image = Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert(mode)
        payload = encoded(image.convert("RGBA") if mode == "PA" else image, "PNG")
    assert pixel(decode(uri(payload)), 1, 1) == (255, 255, 255)


def test_half_alpha_is_half_white() -> None:
    payload = encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "PNG")
    assert np.allclose(pixel(decode(uri(payload)), 1, 1), 127, atol=1)


def test_16_bits_are_scaled_not_clipped() -> None:
    ramp = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    image = decode(uri(encoded(Image.fromarray(ramp), "PNG")))
    assert [image.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 1, 128, 255)]


def scene(width: int, height: int) -> Image.Image:
    """Waves and an edge: something that a careless reduction would shift or smear."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(x / period + y / (2 * period)) for period in (90.0, 40.0, 25.0)]
    pixels = np.stack(waves, axis=-1)
    pixels[height // 3 : height // 2, width // 4 :] = (250, 20, 60)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "RGBA", "L", "1", "CMYK", "I;16"])
def test_a_far_larger_image_comes_reduced_and_means_the_same(kind: str) -> None:
    image, side = scene(901, 652), 40
    if kind == "RGBA":
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    elif kind == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif kind in ("L", "1", "CMYK"):
        image = image.convert(kind)
    payload = encoded(image, "PNG" if kind in ("RGBA", "L", "1", "I;16") else "JPEG" if kind == "CMYK" else kind)
    opened = open_image(uri(payload), param=PARAM, max_pixels=1_000_000)
    whole, reduced = opened.decode(), opened.decode(side)
    assert whole.size == (901, 652)
    assert reduced.mode == "RGB"
    assert reduced.size == (180, 130)
    assert min(reduced.size) >= REDUCING_GAP * side
    one, other = (np.asarray(i.resize((55, side), Image.Resampling.BICUBIC), np.float64) for i in (whole, reduced))
    assert np.abs(one - other).mean() < 1.5


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_of_a_useful_size_comes_as_it_is(kind: str) -> None:
    opened = open_image(uri(encoded(scene(300, 250), kind)), param=PARAM, max_pixels=1_000_000)
    assert opened.decode(max_side=50).tobytes() == opened.decode().tobytes()


def test_a_thin_image_keeps_its_shorter_side() -> None:
    opened = open_image(uri(encoded(scene(4000, 60), "PNG")), param=PARAM, max_pixels=1_000_000)
    assert opened.decode(max_side=50).size == (4000, 60)


def test_a_reduced_image_is_turned_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    halves = HALVES.resize((640, 320), Image.Resampling.NEAREST)
    for kind in ("JPEG", "PNG"):
        opened = open_image(uri(encoded(halves, kind, exif=exif)), param=PARAM, max_pixels=1_000_000)
        image = opened.decode(max_side=20)
        assert image.height == 2 * image.width < 320
        assert pixel(image, 2, 2)[0] > 150
        assert pixel(image, 2, image.height - 3)[2] > 150


@pytest.mark.parametrize("mode", ["L", "1", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    image = Image.new("RGB", (8, 8), "white").convert(mode)
    assert np.allclose(pixel(decode(uri(encoded(image, "JPEG" if mode == "CMYK" else "PNG"))), 3, 3), 255, atol=2)


PNG = encoded(HALVES, "PNG")
TEXT = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png;base64," + TEXT.rstrip("="),
        "data:image/png;base64,\n" + "\r\n".join(TEXT[i : i + 60] for i in range(0, len(TEXT), 60)) + " ",
        "data:image/png;base64," + TEXT.replace("+", "-").replace("/", "_"),
        "data:image/png;base64," + quote(TEXT, safe=""),
        "DATA:IMAGE/PNG;BASE64," + TEXT,
        "data:image/png;charset=utf-8;name=a.png;base64," + TEXT,
        "data:;base64," + TEXT,
        "data:image/jpeg;base64," + TEXT,
        "data:application/octet-stream;base64," + TEXT,
    ],
    ids=["no padding", "blanks", "url-safe", "percent", "upper case", "params", "no type", "wrong type", "octets"],
)
def test_base64_is_taken_with_tolerance(text: str) -> None:
    assert decode(text).size == (32, 16)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://example.com/a.png", "fetching is off"),
        ("HTTPS://example.com/a.png", "fetching is off"),
        ("file:///etc/passwd", "must be a data: URI"),
        ("", "must be a data: URI"),
        ("data:image/png;base64", "without a comma"),
        ("data:text/html;base64," + TEXT, "another type"),
        ("data:image/png," + TEXT, "must be base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,====", "is empty"),
        ("data:image/png;base64,a*b*", "not valid base64"),
        ("data:image/png;base64,abcde", "not valid base64"),
        (uri(b"\x00" * 100), "not a readable JPEG"),
        (uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not a readable JPEG"),
        (uri(PNG[:40]), "not a readable JPEG"),
        (uri(encoded(HALVES, "JPEG")[:-120]), "damaged or cut short"),
        (uri(encoded(HALVES, "WEBP")[:-30]), "damaged or cut short"),
        (uri(encoded(HALVES, "BMP")[:-30]), "damaged or cut short"),
        (uri(PNG[:60] + b"\x00" * 12 + PNG[72:]), "damaged or cut short"),
    ],
)
def test_faults(text: str, words: str) -> None:
    message = refused(text)
    assert words in message
    assert TEXT[:12] not in message


def huge_png(width: int, height: int) -> bytes:
    """A header that promises many pixels, and next to nothing behind it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\x00" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [1001, 14_000, 40_000])
def test_the_pixel_bound_is_read_from_the_header(side: int) -> None:
    assert "1000000 pixels" in refused(uri(huge_png(side, side)))


def test_the_pixel_bound_itself_is_allowed() -> None:
    assert decode(uri(PNG), max_pixels=32 * 16).size == (32, 16)
    assert "32x16" in refused(uri(PNG), max_pixels=32 * 16 - 1)

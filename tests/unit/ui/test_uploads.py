"""A picture added to a chat: made upright, flat and small, or refused in one line."""

from __future__ import annotations

import io

import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from ui.web.uploads import KEPT, LONG_SIDE, MAX_BYTES, PictureError, Uploads, build_uploads, to_jpeg


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def decoded(jpeg: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(jpeg))
    assert image.format == "JPEG"
    return image


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_every_kind_becomes_a_jpeg(kind: str) -> None:
    image = decoded(to_jpeg(encoded(Image.new("RGB", (40, 30), (200, 30, 30)), kind)))
    red, green, _ = image.getpixel((20, 15))  # pyright: ignore[reportGeneralTypeIssues]
    assert image.size == (40, 30)
    assert red > 180
    assert green < 60


def test_upright_flat_and_small() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(to_jpeg(encoded(Image.new("RGB", (40, 30)), "JPEG", exif=exif))).size == (30, 40)
    assert decoded(to_jpeg(encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0))))).getpixel((4, 4)) == (255, 255, 255)
    assert decoded(to_jpeg(encoded(Image.new("I;16", (8, 8), 65535)))).getpixel((4, 4)) == (255, 255, 255)
    assert decoded(to_jpeg(encoded(Image.new("L", (3000, 30))))).width == LONG_SIDE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no picture that can be read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture that can be read"),
        (encoded(Image.new("RGB", (64, 64)), "TIFF"), "no picture that can be read"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:400], "damaged"),
        (encoded(Image.new("1", (10_000, 10_000))), "50 million are the most"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_line(data: bytes, why: str) -> None:
    with pytest.raises(PictureError, match=why):
        to_jpeg(data)


def test_the_routes_say_the_same() -> None:
    site = FastAPI()
    site.include_router(build_uploads(Uploads()))
    client = TestClient(site)
    refused = client.post("/live/chat/pictures", content=b"no picture")
    assert (refused.status_code, "no picture that can be read" in refused.json()["detail"]) == (400, True)
    assert client.post("/live/chat/pictures", content=b"\0" * (MAX_BYTES + 1)).status_code == 413
    kept = client.post("/live/chat/pictures", content=encoded(Image.new("RGB", (9, 9)))).json()["id"]
    assert client.get(f"/live/chat/pictures/{kept}.jpg").headers["content-type"] == "image/jpeg"
    for _ in range(KEPT):
        client.post("/live/chat/pictures", content=encoded(Image.new("RGB", (9, 9))))
    assert client.get(f"/live/chat/pictures/{kept}.jpg").status_code == 404

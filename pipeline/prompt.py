"""Turns a selection into what is asked of the backend: a picture cropped towards its people, and words.

The picture comes first, then the text: small models are taught so. Knows nothing of HTTP.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from camera_sources.cv import import_cv2
from pipeline.config import CameraConfig, PipelineConfig
from pipeline.events import Box, CaptionJob, Selection
from pipeline.facts import fill
from pipeline.picture_note import cut_of, with_note

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionUserMessageParam

MIN_SIDE = 256  # pixels; a smaller cut holds nothing that a model could read
MAX_ASPECT = 1.5  # models squash the picture to a square; a narrow cut would squash its people
WHOLE_FROM = 0.7  # a cut of more than this share of the frame gains nothing over the frame
JPEG_QUALITY = 90


def build_job(selection: Selection, camera: CameraConfig, config: PipelineConfig) -> CaptionJob:
    """The job of a selection: its JPEG cut and encoded as the camera wants it, the facts filled into the prompt."""
    whole = image = selection.frame.image
    if camera.crops:
        image = crop_to_people(whole, tuple(track.box for track in selection.tracks), camera.padding)
    jpeg = with_note(encode_jpeg(image, config.jpeg_long_side, JPEG_QUALITY), cut_of(whole, image))
    prompt = fill(camera.prompt or config.prompt, selection)
    return CaptionJob(selection, jpeg, prompt, wants_details=camera.wants_details)


def message(job: CaptionJob, addition: str = "") -> ChatCompletionUserMessageParam:
    """The job as one chat message: image, then its prompt and `addition`."""
    url = f"data:image/jpeg;base64,{base64.b64encode(job.jpeg).decode('ascii')}"
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": job.prompt + addition}],
    }


def crop_to_people(image: NDArray[np.uint8], boxes: tuple[Box, ...], padding: float) -> NDArray[np.uint8]:
    """A view of `image` [H, W, 3] around all `boxes`, with `padding` times their width and height on each side, since
    surroundings tell what people do; the whole of it if there are no boxes or they fill it."""
    height, width = image.shape[:2]
    if not boxes:
        return image
    x1, x2 = min(b.x1 for b in boxes), max(b.x2 for b in boxes)
    y1, y2 = min(b.y1 for b in boxes), max(b.y2 for b in boxes)
    cut_w = max((x2 - x1) * (1 + 2 * padding), MIN_SIDE)
    cut_h = max((y2 - y1) * (1 + 2 * padding), MIN_SIDE)
    cut_h = min(cut_h, height)  # a person as tall as the frame: widen the cut only as much as that height asks
    cut_w = min(max(cut_w, cut_h / MAX_ASPECT), width)
    cut_h = min(max(cut_h, cut_w / MAX_ASPECT), height)
    if cut_w * cut_h >= WHOLE_FROM * width * height:
        return image
    left, right = _span((x1 + x2) / 2, cut_w, width)
    top, bottom = _span((y1 + y2) / 2, cut_h, height)
    return image[top:bottom, left:right]


def encode_jpeg(image: NDArray[np.uint8], long_side: int, quality: int) -> bytes:
    """`image` (BGR) as JPEG, scaled down so that its longer side is at most `long_side`."""
    cv2 = import_cv2()
    height, width = image.shape[:2]
    scale = long_side / max(height, width)
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return data.tobytes()


def _span(centre: float, length: float, limit: int) -> tuple[int, int]:
    """`length` pixels around `centre`, moved inside [0, limit)."""
    start = min(max(centre - length / 2, 0), limit - length)
    return int(start), min(limit, int(np.ceil(start + length)))

"""How many images can be encoded together here: pictures of noise, alone and in batches, compared at the start."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

import torch

from backend.errors import one_line
from backend.models.adapter import encoded
from backend.runtime.closeness import MAX_ERROR, relative_error

if TYPE_CHECKING:
    from PIL import Image

    from backend.models.adapter import ModelAdapter
    from backend.types.request import ImageInput

MOST_IMAGES = 8
_SIDE = 512

T = TypeVar("T")


def largest_batch(adapter: ModelAdapter, say: Callable[[str], None], limit: int = MOST_IMAGES) -> int:
    """The most images, a power of two up to `limit`, of which each gets the rows it gets alone; 1 is no batch.

    Says in one line what it found, where the model takes images at all.
    """
    if not adapter.spec.takes_images:
        return 1
    length, reason = 1, "this model encodes its images one by one"
    try:
        images = _made_up(adapter, limit)
        if images[0].is_alike(images[1]):
            alone = [_rows(adapter.encode(image)) for image in images]
            reason = ""
            while not reason and 2 * length <= limit:
                together = _rows(adapter.encode_together(images[: 2 * length]))
                error = max(relative_error(*pair) for pair in zip(together, alone, strict=False))
                if error <= MAX_ERROR[adapter.dtype]:
                    length *= 2
                else:
                    reason = f"{2 * length} at once are off by {error:.1%}"
    except Exception as error:  # devices raise many unrelated types; none of them may prevent a start
        reason = one_line(error)
    say(f"Images encoded together: {f'up to {length}' if length > 1 else 'none'}{f'; {reason}' if reason else ''}")
    return length


def _made_up(adapter: ModelAdapter, number: int) -> list[ImageInput]:
    message = {"role": "user", "content": [{"type": "image"}]}
    return [adapter.prepare([message], [_noise(seed)]).images[0] for seed in range(number)]


def _noise(seed: int) -> Image.Image:
    from PIL import Image

    return Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(8 * 8 * 3)).resize((_SIDE, _SIDE))


@torch.inference_mode()
def _rows(encoder: Generator[None, None, T]) -> T:
    return encoded(encoder)

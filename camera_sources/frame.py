"""One picture of one camera, and when it was taken. Knows nothing of what is done with it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Frame:
    """An immutable decoded picture.

    `image` is BGR uint8 [height, width, 3], write-protected. `seq` grows by at least one per frame of a camera and is
    never reused, not even across reconnects or loops. `t_mono` (monotonic) and `t_wall` (Unix) are seconds, stamped
    right after decoding; `pts_s` is the stream's own clock in seconds (for a looping file it keeps growing).
    """

    camera_id: str
    seq: int
    t_mono: float
    t_wall: float
    pts_s: float
    image: NDArray[np.uint8] = field(repr=False, compare=False)


def freeze(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`image` itself, write-protected, as a Frame must hold it."""
    image.flags.writeable = False
    return image

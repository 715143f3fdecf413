"""Clips with the frame's number in the picture: under it a strip of black and white blocks, read back from any copy.

Twelve blocks are the number in binary, lowest bit first; twelve more are the same inverted, so that a strip which was
damaged, or is none, is noticed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUM_BITS = 12
STRIP_HEIGHT = 32  # a multiple of H.264's block size
MARGIN = 64  # levels of gray off black or white that lossy copies may cost


def burn_numbers(source: Path, target: Path, size: tuple[int, int], fps: int, seconds: float | None = None) -> Path:
    """`source` (its first `seconds`), a clip of `size` (width, height), with numbered frames, as a camera sends it: no
    B-frames, a key frame every second."""
    width, height = size
    block = width // (2 * NUM_BITS)
    filters = [f"pad=h={height + STRIP_HEIGHT}:color=black"]
    for place in range(2 * NUM_BITS):
        bit, inverted = place % NUM_BITS, place // NUM_BITS
        box = f"x={place * block}:y={height}:w={block}:h={STRIP_HEIGHT}"
        filters.append(f"drawbox={box}:color=white:t=fill:enable='eq(mod(floor(n/{1 << bit}),2),{1 - inverted})'")
    encode = ["-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-crf", "20", "-g", str(fps), "-an"]
    encode += ["-threads", "1"]  # else each frame has several slices, which GStreamer's payloader tears apart
    length = [] if seconds is None else ["-t", str(seconds)]
    command = ["ffmpeg", "-y", "-loglevel", "error", *length, "-i", source, "-vf", ",".join(filters), *encode]
    subprocess.run([*command, target], check=True)
    return target


def read_number(image: NDArray[np.uint8]) -> int:
    """The number of the frame that `image` [H, W, 3], the whole of it, is a copy of. Raises ValueError for a strip that
    cannot be trusted."""
    height, width = image.shape[:2]
    block = width // (2 * NUM_BITS)
    row = image[height - STRIP_HEIGHT // 2]
    levels = [int(row[place * block + block // 2].mean()) for place in range(2 * NUM_BITS)]
    if any(MARGIN < level < 255 - MARGIN for level in levels):
        raise ValueError(f"no strip of black and white: {levels}")
    bits = [level > 127 for level in levels]
    number, inverted = bits[:NUM_BITS], bits[NUM_BITS:]
    if any(bit == opposite for bit, opposite in zip(number, inverted, strict=True)):
        raise ValueError(f"a strip that contradicts itself: {levels}")
    return sum(1 << place for place, bit in enumerate(number) if bit)

"""Positions of prompts for models that number images by rows and columns (M-RoPE), worked out once per prompt.

A text token has its place in line on all three rows (time, height, width). A picture stands at one time; its
embeddings are numbered by row and column from there, and the text behind it goes on after the longer side. So positions
repeat, and run behind the index. (Qwen2-VL, arXiv 2409.12191, section 2.1.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backend.types.request import PositionRows


@dataclass(frozen=True, slots=True)
class Picture:
    """`rows` x `columns` image tokens of a prompt, row by row, the first at index `start`."""

    start: int
    rows: int
    columns: int


def mrope_positions(num_tokens: int, pictures: Iterable[Picture]) -> tuple[PositionRows, int]:
    """Three rows of `num_tokens` positions, and what a later token's position is ahead of its index (negative: behind).

    `pictures` in order of place, none overlapping.
    """
    time: list[int] = []
    height: list[int] = []
    width: list[int] = []
    place = 0
    for picture in pictures:
        place = _extend_with_text((time, height, width), picture.start, place)
        cells = range(picture.rows * picture.columns)
        time.extend(place for _ in cells)
        height.extend(place + cell // picture.columns for cell in cells)
        width.extend(place + cell % picture.columns for cell in cells)
        place += max(picture.rows, picture.columns)
    place = _extend_with_text((time, height, width), num_tokens, place)
    return (tuple(time), tuple(height), tuple(width)), place - num_tokens


def _extend_with_text(rows: tuple[list[int], ...], end: int, place: int) -> int:
    """Number the tokens up to index `end` from `place` on; returns the place behind them."""
    num_tokens = end - len(rows[0])
    for row in rows:
        row.extend(range(place, place + num_tokens))
    return place + num_tokens

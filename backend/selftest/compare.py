"""Where an answer first leaves the expected one, and whether rounding alone can explain that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.selftest.reference import Expected

MARGINS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.75}
"""Two tokens whose logits differ by less may change places: the same sums in another order round differently.

By number format, of models whose logits reach a few tens.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of an answer that is not the expected one.

    `margin` is how far the expected token's logit is ahead of the other one's, by the reference; Of two texts of
    unlike length one has no token there: None, and an infinite margin.
    """

    prompt: str
    index: int
    got: int | None
    expected: int | None
    margin: float


def first_difference(prompt: str, expected: Expected, got: Sequence[int]) -> Difference | None:
    """Where `got` leaves `expected`, None where it does not."""
    for index, token_id in enumerate(expected.token_ids):
        if index >= len(got):
            return Difference(prompt, index, None, token_id, math.inf)
        if got[index] != token_id:
            return Difference(prompt, index, got[index], token_id, expected.lead(index, got[index]))
    if len(got) > len(expected.token_ids):
        raise ValueError(f"{prompt}: {len(got)} tokens instead of {len(expected.token_ids)}")
    return None


def differences(expected: Mapping[str, Expected], got: Mapping[str, Sequence[int]]) -> list[Difference]:
    """The first difference of every answer that has one. `got` holds an answer for every expected one."""
    found = (first_difference(name, answer, got[name]) for name, answer in expected.items())
    return [difference for difference in found if difference is not None]

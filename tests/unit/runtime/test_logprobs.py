"""The likeliest tokens, picked or found by sorting everything."""

from __future__ import annotations

import pytest
import torch

from backend.runtime.logprobs import LEAST_LOGPROB, read_logprobs


def slow_top(row: list[float], number: int) -> tuple[tuple[int, float], ...]:
    """The oracle: by value, then by id."""
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))
    return tuple((i, max(LEAST_LOGPROB, row[i])) for i in ids[:number])


@pytest.mark.parametrize("num_values", [1, 3, 8, 1000])
@pytest.mark.parametrize("most", [0, 1, 5, 20, 300])
def test_what_is_picked_is_what_sorting_gives(most: int, num_values: int) -> None:
    """Few different values are many ties, at the end of what is told and within."""
    generator = torch.Generator().manual_seed(most + num_values)
    logprobs = -torch.randint(num_values, (12, 300), generator=generator).float()
    logprobs[3, 2:] = logprobs[4] = float("-inf")
    num_top = [most, *(int(n) for n in torch.randint(most + 1, (11,), generator=generator))]
    told = read_logprobs(logprobs, [7] * 12, num_top)
    assert [row.top for row in told] == [slow_top(*pair) for pair in zip(logprobs.tolist(), num_top, strict=True)]

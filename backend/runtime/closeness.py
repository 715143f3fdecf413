"""How near a quick way to compute something must come to the plain one, before anybody is served by it."""

from __future__ import annotations

import torch

MAX_ERROR = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
"""Relative, by dtype: other kernels round otherwise, while a wrong row would be off by about 1."""


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference of rows [n, H], relative to that of the `expected` ones.

    What several rows have in common does not count: it would hide that they changed places.
    """
    truth = expected.float()
    common = truth.mean(dim=0) if len(truth) > 1 else 0.0
    return float((got.float() - truth).norm() / (truth - common).norm())

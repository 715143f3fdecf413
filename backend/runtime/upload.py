"""Host values to device tensors without stopping the device.

A plain copy from pageable memory waits for the device to catch up, once per tensor; a pinned one does not. On a CPU
there is nothing to pin and nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def upload(
    values: Sequence[int] | Sequence[float] | Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of `values` on `device`; the copy is queued, never waited for."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)

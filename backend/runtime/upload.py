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
    # Torch's pool of pinned memory hands nothing out again before the device has copied it.
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def upload_bytes(data: bytes, device: torch.device) -> torch.Tensor:
    """A tensor uint8 [n] of `data` (not empty) on `device`, likewise."""
    values = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return values if device.type == "cpu" else values.pin_memory().to(device, non_blocking=True)

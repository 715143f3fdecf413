"""Device tensors to host values, without waiting for the device until they are read."""

from __future__ import annotations

import torch


class Download:
    """A tensor of numbers on its way to the host. It is queued behind what was launched before it.

    Its arrival therefore says that all of that has ended.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if values.device.type == "cpu":
            self._host = values
            return
        # Only pinned memory is copied to while the host goes on.
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[int]:
        """The values, once they are here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()

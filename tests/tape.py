"""A `Recorder` without a GPU: the operations of a run on a tape, played again on the same memory.

As with CUDA graphs, Python is not run again: whatever it decided, or read from a tensor, is as it was. Reading a number
from a tensor cannot be recorded at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backend.runtime.graphs import Replay


class Tape(TorchDispatchMode):
    """Operations in their order; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        output = func(*args, **(kwargs or {}))
        written = _tensors(output)
        memory = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        is_view = not func._schema.is_mutable and all(t.untyped_storage().data_ptr() in memory for t in written)
        if not is_view:  # a view shows whatever is in the memory it looks at
            self.operations.append((func, args, kwargs or {}, written))
        return output

    def play(self) -> None:
        """All of it again, on the same memory."""
        for func, args, kwargs, written in self.operations:
            for old, new in zip(written, _tensors(func(*args, **kwargs)), strict=True):
                if old is not new and old.numel():
                    old.copy_(new)


class TapeRecorder:
    """`Recorder` by a tape; counts what is recorded and replayed."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replays = 0

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        """See `Recorder.record`."""
        tape = Tape()
        with tape:
            output = work()
        self.num_recorded += 1

        def replay() -> torch.Tensor:
            self.num_replays += 1
            tape.play()
            return output

        return replay


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]

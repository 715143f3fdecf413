"""Work shared by threads that never wait for one another, only for tasks that another has begun.

All threads walk through the same phases of a step. A phase is a number of tasks and a tally of two counters, taken and
finished: who comes along takes the next task, and who finds none left waits until the taken ones are finished. So a
thread that the system has put aside for somebody else's work holds nobody up, unless it was in the middle of a task;
the others do its share, and it finds the phases done when it is back. Which thread computes a task changes no result.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from backend.runtime.native.vectors import compiled

TALLY_BYTES = 128
"""Each of the two counters has a cache line of its own."""
FINISHED = 64
PATIENCE = 4096
"""Looks at a counter before a waiting thread offers its core to others: longer than nearly all tasks take."""

I32, I64 = ir.IntType(32), ir.IntType(64)
_HAS_PAUSE = platform.machine().lower() in ("x86_64", "amd64")


@intrinsic
def _add(context: Any, address: Any, amount: Any) -> Any:
    """Add to a counter that others may change, too; returns what it was."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _read(context: Any, address: Any) -> Any:
    """A counter as it is now; what was written before it grew is seen by whoever reads it so."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


def _calling(name: str, kind: ir.FunctionType) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [])
        return context.get_dummy_value()

    return generate


@intrinsic
def _pause(context: Any) -> Any:
    """Tell the core that this is a waiting loop, where it has a word for that."""
    if not _HAS_PAUSE:
        return types.void(), lambda context, builder, signature, arguments: context.get_dummy_value()
    return types.void(), _calling("llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), []))


@intrinsic
def _offer_core(context: Any) -> Any:
    """Let whoever else is ready use this core first."""
    return types.void(), _calling("sched_yield", ir.FunctionType(I32, []))


@compiled
def take(tally):  # noqa: ANN001, ANN201
    """The next task of the phase; those at or beyond its number of tasks do not exist."""
    return _add(tally, 1)  # type: ignore[call-arg]


@compiled
def take_next(tally):  # noqa: ANN001, ANN201
    """Finish the task taken before, and take the next one."""
    _add(tally + FINISHED, 1)  # type: ignore[call-arg]
    return _add(tally, 1)


@compiled
def settle(tally, num_tasks):  # noqa: ANN001, ANN201
    """Wait until all tasks of the phase are finished."""
    looks = 0
    while _read(tally + FINISHED) < num_tasks:  # type: ignore[call-arg]
        looks += 1
        if looks < PATIENCE:
            _pause()
        else:
            _offer_core()

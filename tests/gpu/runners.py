"""Runners by the name of a way to compute: an attention backend, or decode steps replayed from graphs."""

from __future__ import annotations

from backend.runtime.graphs import CudaRecorder
from backend.runtime.runner import Runner, build_runner
from tests.gpu.made_models import Made
from tests.tape import TapeRecorder

GRAPHS = "graphs"
AHEAD = "graphs ahead"
"""By graphs, and each step is made while the one before it is in flight."""
BLOCK_SIZE = 16


def runner_of(made: Made, way: str, num_blocks: int) -> Runner:
    """A runner that computes by `way`. Raises ArithmeticError where graphs did not pass their own check."""
    if way not in (GRAPHS, AHEAD):
        return build_runner(made.adapter, num_blocks=num_blocks, block_size=BLOCK_SIZE, attention=way)
    said: list[str] = []
    recorder = CudaRecorder() if made.adapter.device.type == "cuda" else TapeRecorder()
    runner = build_runner(
        made.adapter, num_blocks=num_blocks, block_size=BLOCK_SIZE, recorder=recorder, say=said.append
    )
    if not said or ": none" in said[0]:
        raise ArithmeticError(said[0] if said else "the pool is too small for graphs")
    return runner

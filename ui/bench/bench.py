"""Runs phases one after another and keeps what each gave: the thread through all other modules of the bench.

What was measured stays in `Bench.measured`, however `run` ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from ui.bench.client import Client, FramesFor
from ui.bench.engine import Engine
from ui.bench.phase import Measured, run_phase
from ui.bench.progress import Meter
from ui.bench.recorder import Outcome
from ui.bench.scenario import Phase

TICK_S = 0.5
STEPS_EVERY_S = 20.0
"""The engine remembers its latest 4,096 steps; asking more often would disturb what is measured."""


class Bench:
    """Measures phases against one client; `engine` is None unless the server is ours."""

    def __init__(self, client: Client, engine: Engine | None, frames_for: FramesFor, seed: int, meter: Meter) -> None:
        self.measured: list[Measured] = []
        self._client, self._engine, self._frames_for = client, engine, frames_for
        self._seed, self._meter = seed, meter

    async def warm_up(self, *, camera: bool) -> None:
        """First requests, which are not measured; raises `UsageError` when one is refused."""
        await self._client.warm_up(self._frames_for("warm-up") if camera else None)
        if self._engine:
            self._engine.new_steps()

    async def run(self, phases: Sequence[Phase], num_runs: int) -> None:
        """All phases, `num_runs` times over. Raises `EndpointLost`."""
        for run in range(1, num_runs + 1):
            for phase in phases:
                label = f"run {run} of {num_runs}: {phase.name}" if num_runs > 1 else phase.name
                await self.measure(phase, run, label)

    async def measure(self, phase: Phase, run: int, label: str, *, load: str | None = None) -> Measured:
        """One phase. Phases with the same `load` (default: the phase's name) and run ask for the same."""
        measured = Measured(phase, run)
        self.measured.append(measured)
        self._meter.begin(label)
        ticking = asyncio.create_task(self._tick(measured))
        try:
            await run_phase(measured, self._client, self._frames_for, f"{self._seed}/{run}/{load or phase.name}")
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            self._take_steps(measured)
        if any(rec.outcome is Outcome.CUT for rec in measured.recordings):
            await self._client.settle()
        return measured

    async def _tick(self, measured: Measured) -> None:
        t_steps = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._meter.update(measured.progress(now))
            if now - t_steps > STEPS_EVERY_S:
                t_steps = now
                self._take_steps(measured)

    def _take_steps(self, measured: Measured) -> None:
        if self._engine:
            measured.steps += self._engine.new_steps()

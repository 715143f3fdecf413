"""Runs phases one after another against one server: the thread through all other modules of the bench.

What was measured stays in `Bench.measured`, however a run ends.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ui.bench.client import Client
from ui.bench.endpoint import Endpoint
from ui.bench.engine import Engine
from ui.bench.frames import FrameSource
from ui.bench.phase import Measured, run_phase
from ui.bench.progress import Meter
from ui.bench.recorder import Outcome
from ui.bench.scenario import Phase

TICK_S = 0.5
STEPS_EVERY_S = 20.0
"""The engine remembers its latest 4,096 steps; asking more often would disturb what is measured."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and what."""

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    image: Path | None = None
    size: tuple[int, int] = (512, 512)
    caption_tokens: int = 24


class Bench:
    """Measures phases against `target`. `seed` fixes the load, `meter` is told how it goes."""

    def __init__(self, target: Target, seed: int, meter: Meter) -> None:
        self.measured: list[Measured] = []
        self.server: dict[str, Any] = {}
        """What the report says of the server; empty until it was reached."""
        self.engine = Engine(target.base_url, target.api_key)
        self.settings: dict[str, Any] | None = None
        """The engine's settings if the server is ours."""
        self._target, self._seed, self._meter = target, seed, meter
        self._salt = secrets.token_hex(4)
        self._client: Client | None = None

    @asynccontextmanager
    async def connected(self, *, camera: bool) -> AsyncIterator[None]:
        """Find out who answers and warm it up, with a frame if `camera`; measure in here. Raises `UsageError`."""
        target = self._target
        endpoint = Endpoint(target.base_url, model=target.model, api_key=target.api_key, say=self._meter.say)
        async with endpoint:
            try:
                await endpoint.connect()
                self.settings = self.engine.settings()
                self._client = Client(endpoint, self._salt, target.caption_tokens)
                await self._client.warm_up(self._frames_for("warm-up") if camera else None)
                self.server = {
                    "base_url": endpoint.name,
                    "model": endpoint.model,
                    "max_model_len": endpoint.max_model_len,
                    "ignore_eos": endpoint.ignores_eos,
                    "engine": self.settings,
                }
                self._new_steps()
                yield
            finally:
                self.engine.close()

    async def run(self, phases: Sequence[Phase], num_runs: int) -> None:
        """All phases, `num_runs` times over. Raises `EndpointLost`."""
        for run in range(1, num_runs + 1):
            for phase in phases:
                await self.measure(phase, run, f"run {run} of {num_runs}: {phase.name}" if num_runs > 1 else phase.name)

    async def measure(self, phase: Phase, run: int, label: str, *, load: str | None = None) -> Measured:
        """One phase. Phases of the same `load` (default: the phase's name) and run ask for the same."""
        assert self._client is not None, "measure inside connected()"
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
            measured.steps += self._new_steps()
        if any(rec.outcome is Outcome.CUT for rec in measured.recordings):
            await self._client.settle()
        return measured

    def _frames_for(self, seed: str) -> FrameSource:
        assert self._target.image is not None, "this load has no cameras"
        return FrameSource(self._target.image, self._target.size, seed=seed, salt=self._salt)

    async def _tick(self, measured: Measured) -> None:
        t_steps = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._meter.update(measured.progress(now))
            if now - t_steps > STEPS_EVERY_S:
                t_steps = now
                measured.steps += self._new_steps()

    def _new_steps(self) -> list[Any]:
        return self.engine.new_steps() if self.settings else []

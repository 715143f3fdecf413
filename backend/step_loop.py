"""The loop over steps: schedule -> launch -> land -> apply -> deliver, with one step in flight or two.

Belongs to the engine thread. Knows nothing of threads, commands or the engine's life.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from backend.metrics import EngineMetrics
from backend.sched.scheduler import Scheduler
from backend.step_ring import record_of
from backend.step_runner import Flight, StepRunner
from backend.types.scheduler import SchedulerStats
from backend.types.step import Step
from backend.waiters import Waiters


@dataclass(frozen=True, slots=True)
class _Launched:
    step: Step
    flight: Flight
    t_launch: float


class StepLoop:
    """Keeps a runner busy with what a scheduler makes. `stats` are the scheduler's numbers after the latest step.

    With `async_scheduling` the next step is made and launched before the one in flight lands, wherever that one's
    result cannot change it, so that a device that computes by itself never waits for Python (vLLM's flag of that name).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        waiters: Waiters,
        metrics: EngineMetrics,
        *,
        async_scheduling: bool,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._waiters = waiters
        self._metrics = metrics
        self._is_async = async_scheduling
        self._in_flight: _Launched | None = None
        self._t_landed = 0.0
        self.stats = self.read_stats()

    def go_on(self) -> None:
        """Launch the next step, if there is one, and land the one in flight; without `async_scheduling` the next, too.

        Raises whatever the runner does, and RuntimeError where requests are alive and none can be served: better an
        answer to everyone than a thread that spins, or sleeps, for good.
        """
        before = self._in_flight
        step = self._scheduler.schedule() if before is None else self._scheduler.schedule_ahead()
        launched = None if step is None else self._launch(step)
        if before is not None:
            self._land(before)
        elif launched is None and self._scheduler.has_work():
            raise RuntimeError("requests are alive, but the scheduler finds nothing to run")
        if launched is not None and not (self._is_async and launched.flight.is_smooth):
            self._land(launched)
            launched = None
        self._in_flight = launched

    def read_stats(self) -> SchedulerStats:
        """`stats`, read anew and told to the metrics."""
        self.stats = self._scheduler.stats()
        self._metrics.observe_stats(self.stats)
        return self.stats

    def _launch(self, step: Step) -> _Launched:
        t_launch = time.monotonic()
        self._waiters.note_scheduled(step, t_launch)
        # Readers of the step before run while the model does: sooner, they would only wait for the interpreter, and
        # take it from the engine between two steps.
        self._waiters.wake()
        return _Launched(step, self._runner.launch(step), t_launch)

    def _land(self, launched: _Launched) -> None:
        step = launched.step
        # Whoever was told of something since the launch does not wait for this step.
        self._waiters.wake()
        result = launched.flight.land()
        events = self._scheduler.apply(result)
        # A step that was launched before another had ended began with the end of that one.
        t_begin, self._t_landed = max(launched.t_launch, self._t_landed), time.monotonic()
        self._scheduler.policy.observe(step, self._t_landed - t_begin)
        self._waiters.deliver(events, self._t_landed)
        self._metrics.observe_step(record_of(step, result, self.read_stats(), t_begin, self._t_landed))
        if not self._scheduler.has_work():
            self._waiters.wake()

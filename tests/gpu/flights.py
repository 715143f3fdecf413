"""Steps as the engine drives them: one by one, or each made and launched while the one before it is in flight."""

from __future__ import annotations

from collections.abc import Iterator

from backend.runtime.runner import Runner
from backend.sched.scheduler import Scheduler
from backend.types.result import StepResult
from backend.types.step import Step


def landings(scheduler: Scheduler, runner: Runner, *, ahead: bool) -> Iterator[tuple[Step, StepResult]]:
    """Steps in their order, each when it has landed, until nothing is left to do.

    Whoever takes one applies its result before taking the next. With `ahead` the next is in flight by then, wherever
    that result cannot change it.
    """
    in_flight = None
    while True:
        step = scheduler.schedule() if in_flight is None else scheduler.schedule_ahead()
        launched = None if step is None else (step, runner.launch(step))
        if in_flight is not None:
            yield in_flight[0], in_flight[1].land()
        elif launched is None:
            return
        if launched is not None and not (ahead and launched[1].is_smooth):
            yield launched[0], launched[1].land()
            launched = None
        in_flight = launched

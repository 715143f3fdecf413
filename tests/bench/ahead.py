"""What steps made ahead save where a device computes by itself: `python -m tests.bench.ahead`. Prints a table.

There is no device: each step is over `DEVICE_S` after it was launched, or after the one before it was over. What Python
does for a step is real. Run it while nothing else does.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time

from backend.engine import Engine
from backend.runtime.encoder_cache import EncoderCache
from backend.runtime.runner import Runner
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.server.__main__ import SWITCH_S
from backend.step_runner import Flight
from backend.types.result import StepResult
from backend.types.step import Step
from tests.bench.overhead import CLOCK, NUM_STEPS, IdleText, answer, limits_of
from tests.unit.runtime.toy import ToyAdapter

DEVICE_S = 0.004


class _Queued:
    """A flight that is over when the device says so."""

    def __init__(self, flight: Flight, t_over: float) -> None:
        self._flight, self._t_over = flight, t_over
        self.is_smooth = flight.is_smooth

    def land(self) -> StepResult:
        time.sleep(max(0.0, self._t_over - CLOCK()))
        return self._flight.land()


class DeviceRunner(Runner):
    """A runner whose device takes the steps one after the other. `t_over` has the end of each."""

    def __init__(self, adapter: ToyAdapter) -> None:
        super().__init__(adapter, IdleText(model_s=0.0), EncoderCache(adapter), block_size=16)
        self.t_over: list[float] = []

    def launch(self, step: Step) -> Flight:  # pyright: ignore[reportIncompatibleMethodOverride]
        flight = super().launch(step)
        self.t_over.append(max(CLOCK(), self.t_over[-1] if self.t_over else 0.0) + DEVICE_S)
        return _Queued(flight, self.t_over[-1])


def beyond_device_us(num_running: int, *, async_scheduling: bool) -> float:
    """Median microseconds between the ends of two steps, less those that the device takes."""
    runner, limits = DeviceRunner(ToyAdapter()), limits_of(num_running)
    scheduler = Scheduler(limits, make_policy("stall-free"))
    engine = Engine(scheduler, runner, limits, async_scheduling=async_scheduling)
    engine.start()
    asyncio.run(answer(engine, num_running, 0))
    engine.stop()
    gaps = [after - before for before, after in itertools.pairwise(runner.t_over[NUM_STEPS // 4 : 3 * NUM_STEPS // 4])]
    return (statistics.median(gaps) - DEVICE_S) * 1e6


def main() -> None:
    sys.setswitchinterval(SWITCH_S)
    print(f"Microseconds of a step beyond the {DEVICE_S * 1e3:.0f} ms that its device computes")
    print(f"{'running':>8}{'one step in flight':>20}{'two':>8}")
    for num_running in (1, 8, 64):
        one, two = (beyond_device_us(num_running, async_scheduling=on) for on in (False, True))
        print(f"{num_running:8}{one:20.0f}{two:8.0f}", flush=True)


if __name__ == "__main__":
    main()

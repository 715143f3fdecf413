"""Play one fuzz seed and print its steps: `python -m tests.fuzz.replay SEED`."""

from __future__ import annotations

import sys

from backend.sched.scheduler import Scheduler
from backend.types.step import Step
from tests.fuzz.player import play
from tests.fuzz.traces import make_trace


class LoudScheduler(Scheduler):
    """Prints every step it makes."""

    def schedule(self) -> Step | None:
        step = super().schedule()
        if step is not None:
            chunks = [f"{c.request_id}[{c.start}+{c.num_tokens}]{'*' * c.samples}" for c in step.chunks]
            encodes = [f"{'+'.join(i.key for i in e.images)}({e.first_slice}+{e.num_slices})" for e in step.encodes]
            print(step.step_id, *chunks, *encodes, *(f"-{key}" for key in step.evictions))
        return step


def main() -> None:
    trace = make_trace(int(sys.argv[1]))
    print(trace.policy, trace.limits)
    for request in trace.requests:
        print(request)
    print(play(trace, LoudScheduler).num_preemptions, "preemptions; passed")


if __name__ == "__main__":
    main()

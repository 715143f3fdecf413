"""Runs requests through the real scheduler and the real runner, one step after the other, to the end of all.

No thread, no queue, no HTTP: what is computed is what a server would compute, in an order that can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from backend.errors import EngineError
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.selftest.guesses import WildSpeculator
from backend.types.request import Request
from backend.types.result import FinishReason, PromptLogprobs
from backend.types.scheduler import SchedulerLimits, SchedulerStats
from backend.types.step import Step

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter
    from backend.step_runner import Flight, StepRunner

NUM_GUESSES = 5
MAX_IDLE_STEPS = 1000
"""A scheduler that makes no step so often in a row, with requests to serve, makes none at all."""

StepTime = Callable[[Step], float]
"""Seconds that a step is said to have taken."""


class DriveError(EngineError):
    """A request did not end as it should have: the message names it and says why."""


@dataclass
class Outcome:
    """What the engine did."""

    tokens: dict[str, list[int]]
    steps: list[Step] = field(default_factory=list)
    stats: SchedulerStats | None = None
    num_accepted: int = 0
    num_ahead: int = 0
    prompt_logprobs: list[tuple[str, PromptLogprobs]] = field(default_factory=list)

    @property
    def num_drafts(self) -> int:
        """Tokens guessed."""
        return sum(step.num_draft_tokens for step in self.steps)

    @property
    def num_encodings(self) -> int:
        """How often an image was begun."""
        return sum(len(e.images) for step in self.steps for e in step.encodes if e.first_slice == 0)


def made_up_s(step: Step) -> float:
    """Invented, so that a policy which learns from times repeats itself."""
    num_slices = sum(encode.num_slices for encode in step.encodes)
    return 0.010 + 0.0005 * (step.num_decode_tokens + step.num_prefill_tokens) + 0.008 * num_slices


def drive(
    adapter: ModelAdapter,
    runner: StepRunner,
    requests: Iterable[Request],
    limits: SchedulerLimits,
    *,
    policy: str = "stall-free",
    arrivals: Sequence[int] = (),
    truth: Mapping[str, Sequence[int]] | None = None,
    step_s: StepTime = made_up_s,
    ahead: bool = False,
) -> Outcome:
    """Run `requests` to their end, the i-th submitted at step `arrivals[i]` (missing: at once). Closes the runner.

    With `ahead` steps are made while one is in flight, wherever that one's result cannot change them.
    With their answers in `truth`, up to `NUM_GUESSES` tokens of each are guessed in a step, right and wrong ones.
    Raises `DriveError` when a request fails, `Rejected` when one does not fit the limits.
    """
    if truth is not None:
        limits = replace(limits, num_speculative_tokens=NUM_GUESSES)
    scheduler = Scheduler(limits, make_policy(policy))
    if truth is not None:
        scheduler._speculator = _speculator(adapter, truth)
    queue = [(arrivals[i] if i < len(arrivals) else 0, request) for i, request in enumerate(requests)]
    outcome = Outcome({request.request_id: [] for _, request in queue})
    in_flight: tuple[Step, Flight] | None = None
    clock = num_idle = 0
    try:
        while queue or scheduler.has_work():
            if not scheduler.has_work():
                clock = max(clock, min(due for due, _ in queue))  # nothing happens until then
            for due in [entry for entry in queue if entry[0] <= clock]:
                scheduler.submit(due[1])
                queue.remove(due)
            clock += 1
            step = scheduler.schedule() if in_flight is None else scheduler.schedule_ahead()
            outcome.num_ahead += step is not None and in_flight is not None
            num_idle = num_idle + 1 if step is None and in_flight is None else 0
            launched = None if step is None else (step, runner.launch(step))
            if in_flight is not None:
                _land(*in_flight, scheduler, outcome, step_s)
            in_flight = launched
            if launched is not None and not (ahead and launched[1].is_smooth):
                _land(*launched, scheduler, outcome, step_s)
                in_flight = None
            if num_idle > MAX_IDLE_STEPS:
                raise DriveError("the scheduler has requests to serve and makes no step")
    finally:
        runner.close()
    outcome.stats = scheduler.stats()
    return outcome


def _land(step: Step, flight: Flight, scheduler: Scheduler, outcome: Outcome, step_s: StepTime) -> None:
    outcome.steps.append(step)
    result = flight.land()
    outcome.num_accepted += result.num_accepted_tokens
    for event in scheduler.apply(result):
        if event.finish_reason not in (None, FinishReason.LENGTH):
            raise DriveError(f"{event.request_id}: {event.error or event.finish_reason}")
        if event.prompt_logprobs is not None:
            outcome.prompt_logprobs.append((event.request_id, event.prompt_logprobs))
        if event.token_id is not None:
            outcome.tokens[event.request_id].append(event.token_id)
    scheduler.policy.observe(step, step_s(step))
    scheduler.check()


def _speculator(adapter: ModelAdapter, truth: Mapping[str, Sequence[int]]) -> WildSpeculator:
    return WildSpeculator(
        NUM_GUESSES,
        adapter.spec.vocab_size,
        len(truth),
        lambda seq, guesses: truth[seq.request_id][seq.num_outputs + len(guesses)],
    )

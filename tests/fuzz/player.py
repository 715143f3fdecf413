"""Plays a trace against a real scheduler and the contract runner, and checks everything after every step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate

from backend.errors import ConfigError, Overloaded, Rejected
from backend.sched.cost import CostModel, Work, work_of
from backend.sched.policy import POLICIES, Policy, make_policy
from backend.sched.scheduler import Scheduler
from backend.sched.sequence import SeqState
from backend.sched.view import Lane, View
from backend.selftest.guesses import WildSpeculator
from backend.types.request import Request
from backend.types.result import FinishReason, StepResult, TokenEvent
from backend.types.step import Step
from tests.fuzz.contract_runner import VOCAB_SIZE, ContractRunner, expected_answer
from tests.fuzz.machine import Machine
from tests.fuzz.traces import Trace, never_fits

IMPOSSIBLE_TIMES = (0.0, -1.0, float("inf"), float("nan"))


@dataclass
class Outcome:
    """What a trace came to."""

    steps: list[Step] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    num_preemptions: int = 0
    num_hit_tokens: int = 0
    num_encoded: int = 0
    num_reencoded: int = 0
    num_together: int = 0
    num_rejected: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_by_time: int = 0
    num_ahead: int = 0
    num_thrown_away: int = 0


class WatchedPolicy:
    """A policy that remembers the view it saw last, and is asked everything twice."""

    def __init__(self, policy: Policy) -> None:
        self.name, self.cost = policy.name, policy.cost
        self.view: View | None = None
        self._policy = policy

    def lanes(self, view: View) -> tuple[Lane, ...]:
        self.view = view
        lanes = self._policy.lanes(view)
        assert lanes == self._policy.lanes(view), "lanes() is not pure"
        return lanes

    def slices(self, view: View) -> int | None:
        slices = self._policy.slices(view)
        assert slices == self._policy.slices(view), "slices() is not pure"
        return slices

    def drafts(self, view: View) -> int:
        drafts = self._policy.drafts(view)
        assert drafts == self._policy.drafts(view), "drafts() is not pure"
        return drafts

    def observe(self, step: Step, elapsed_s: float) -> None:
        self._policy.observe(step, elapsed_s)


def play(trace: Trace, make_scheduler: type[Scheduler] = Scheduler) -> Outcome:
    """Play `trace` to its end; AssertionError as soon as anything is wrong."""
    rng = random.Random(trace.seed + 1)
    policy, machine = _policy(trace, trace.policy, CostModel()), trace.machine()
    scheduler, runner, outcome = make_scheduler(trace.limits, policy), ContractRunner(trace.limits), Outcome()
    if trace.has_wild_guesses:
        scheduler._speculator = WildSpeculator(
            trace.limits.num_speculative_tokens,
            VOCAB_SIZE,
            trace.seed,
            lambda seq, guesses: runner.truths[seq.request_id].with_guesses(guesses).next_token(),
        )
    queue = list(trace.requests)
    flight = Flight(scheduler, runner, outcome, machine, rng)
    ahead = random.Random(trace.seed + 8)
    for _ in range(_step_bound(trace)):
        while queue and rng.random() < trace.arrival_odds:
            _submit(queue.pop(0), scheduler, runner, outcome)
        _disturb(rng, trace, scheduler, runner)
        if rng.random() < trace.switch_odds:
            scheduler.policy = policy = _other_policy(rng, trace, policy)
        scheduler.check()
        step = flight.next_step()
        scheduler.check()
        if step is None:
            assert not scheduler.has_work(), "an idle step while somebody could run"
            if not queue:
                break
            continue
        outcome.steps.append(step)
        outcome.num_together += sum(len(encode.mates) for encode in step.encodes)
        runner.may_encode_at_will = _goes_by_time(step, policy)
        if policy.name != "prefill-first":
            _check_no_decode_is_stalled(step, policy.view)
        if policy.name == "stall-free":
            outcome.num_by_time += _prompt_goes_by_time(step, policy)
        result = runner.execute(step, *_failures(rng, trace, step))
        flight.launch(step, result)
        if rng.random() < trace.cancel_odds / 4 and step.chunks:
            request_id = rng.choice(step.chunks).request_id
            if runner.truths[request_id].finish_reason is None:
                _cancel(request_id, scheduler, runner)
        if result.failed_images or ahead.random() >= trace.ahead_odds:
            flight.land()
    else:
        raise AssertionError("no end in sight: starvation or thrashing")
    _check_end(trace, scheduler, runner, outcome)
    return outcome


class Flight:
    """Steps that are computed and not yet applied: one, or while another is made ahead of it, two."""

    def __init__(
        self, scheduler: Scheduler, runner: ContractRunner, outcome: Outcome, machine: Machine, rng: random.Random
    ) -> None:
        self._scheduler, self._runner, self._outcome, self._machine = scheduler, runner, outcome, machine
        self._rng = rng
        self._flying: list[tuple[Step, StepResult]] = []

    def next_step(self) -> Step | None:
        """Ahead of the one in flight, if there is one and it may be; else after it."""
        if self._flying and (step := self._scheduler.schedule_ahead()) is not None:
            self._outcome.num_ahead += 1
            return step
        self.land()
        return self._scheduler.schedule()

    def launch(self, step: Step, result: StepResult) -> None:
        """`step` is computed; then the one before it is applied."""
        before, self._flying = self._flying, [*self._flying, (step, result)]
        for one in before:
            self._land(*one)

    def land(self) -> None:
        """Apply what is in flight."""
        for one in list(self._flying):
            self._land(*one)

    def _land(self, step: Step, result: StepResult) -> None:
        del self._flying[0]
        alive = [key for key in result.sampled if self._runner.truths[key].finish_reason is None]
        self._outcome.num_thrown_away += len(result.sampled) - len(alive)
        events = self._scheduler.apply(result)
        self._runner.take_events(events, result)
        self._outcome.events += events
        self._outcome.num_drafts += step.num_draft_tokens
        self._outcome.num_accepted += result.num_accepted_tokens
        is_timed = self._rng.random() < 0.99
        elapsed_s = self._machine.time_s(step) if is_timed else self._rng.choice(IMPOSSIBLE_TIMES)
        self._scheduler.policy.observe(step, elapsed_s)
        self._scheduler.check()


def _step_bound(trace: Trace) -> int:
    """Twice the steps it would take to serve one request after the other, and the time until all have arrived."""
    budget = trace.limits.max_num_batched_tokens
    if trace.budget_odds or trace.switch_odds or not trace.limits.is_token_budget_exact:
        budget = min(budget, trace.limits.max_num_seqs)
    if trace.policy == "latency-target":
        budget = min(budget, trace.limits.max_num_seqs)
    tokens = sum(1 + len(r.prompt.token_ids) // budget + r.sampling.max_tokens for r in trace.requests)
    slices = sum(image.num_slices for r in trace.requests for image in r.prompt.images)
    return 2 * (tokens + slices) + int(20 * len(trace.requests) / trace.arrival_odds)


def _submit(request: Request, scheduler: Scheduler, runner: ContractRunner, outcome: Outcome) -> None:
    try:
        scheduler.submit(request)
    except Rejected:
        assert never_fits(request, runner.limits), "a request was refused that fits"
        outcome.num_rejected += 1
    except Overloaded:
        assert scheduler.stats().num_waiting >= runner.limits.max_num_waiting
        outcome.num_rejected += 1
    else:
        assert not never_fits(request, runner.limits), "a request was taken that can never fit"
        runner.admit(request)


def _disturb(rng: random.Random, trace: Trace, scheduler: Scheduler, runner: ContractRunner) -> None:
    alive = [request_id for request_id, truth in runner.truths.items() if truth.finish_reason is None]
    if alive and rng.random() < trace.cancel_odds:
        _cancel(rng.choice(alive), scheduler, runner)
    if rng.random() < trace.budget_odds:
        budget = rng.randint(1, trace.limits.hard_num_batched_tokens + 5)
        allowed = trace.limits.max_num_seqs <= budget <= trace.limits.hard_num_batched_tokens
        goes_by_time = budget % 4 == 0 and not trace.limits.is_token_budget_exact
        allowed |= goes_by_time
        try:
            scheduler.set_token_budget(None if goes_by_time else budget)
        except ConfigError:
            assert not allowed
        else:
            assert allowed


def _other_policy(rng: random.Random, trace: Trace, policy: WatchedPolicy) -> WatchedPolicy:
    """Any policy, with what the one before has learned; a target below a bare decode step must be refused."""
    try:
        return _policy(trace, rng.choice(tuple(POLICIES)), policy.cost)
    except ConfigError:
        assert trace.target_s is not None
        assert trace.target_s <= policy.cost.coefficients.bare_decode_s, "a target was refused that can be met"
        return policy


def _policy(trace: Trace, name: str, cost: CostModel) -> WatchedPolicy:
    return WatchedPolicy(make_policy(name, cost, trace.target_s if name == "latency-target" else None))


def _cancel(request_id: str, scheduler: Scheduler, runner: ContractRunner) -> None:
    assert scheduler.cancel(request_id), "a living request was not found"
    assert not scheduler.cancel(request_id), "a cancelled request still lives"
    runner.forget(request_id)


def _failures(rng: random.Random, trace: Trace, step: Step) -> tuple[list[str], list[str]]:
    requests = [chunk.request_id for chunk in step.chunks if rng.random() < trace.failure_odds / 2]
    images = [i.key for encode in step.encodes for i in encode.images if rng.random() < trace.failure_odds]
    return requests, images


def _goes_by_time(step: Step, policy: WatchedPolicy) -> bool:
    """Whether what slices cost decides how many there are, not the operator's limits; checks that it is kept to.

    Under a latency target slices are part of a plan; else they may take as long as the step's decodes, at least 10 ms,
    and 0.2 s beside none.
    """
    if policy.name == "latency-target":
        return True
    view, cost = policy.view, policy.cost
    assert view is not None
    slices = [(e, index) for e in view.images for index in range(e.first_slice, e.first_slice + e.num_slices)]
    costs = [cost.slices.slice_s(e.image, index, len(e.images)) for e, index in slices]
    if not costs or None in costs:
        return False
    room_s = 0.2
    if view.decodes:
        decodes = Work.of_decodes(seq.total for seq in view.decodes)
        room_s = max(0.01, cost.coefficients.forward_s(decodes))
    num_fitting = sum(total_s <= room_s + 1e-9 for total_s in accumulate(c or 0.0 for c in costs))
    assert step.num_encoder_slices <= max(1, num_fitting), "slices take longer than they may"
    return True


def _prompt_goes_by_time(step: Step, policy: WatchedPolicy) -> bool:
    """Whether a prompt was given tokens by what they cost; checks that they end in the time that there is for them.

    Priced from the step as it came out, not as it was planned. Steps with other prompts than the first one are passed
    over, a span that may not be split, which takes what it takes, and images of who was queued, which no plan knows.
    """
    view, cost = policy.view, policy.cost
    assert view is not None
    chunks = [chunk for chunk in step.chunks if not chunk.is_decode]
    if view.is_budget_exact or not view.decodes or not cost.num_observed or len(chunks) != 1:
        return False
    (chunk,) = chunks
    if chunk.request_id != view.prompts[0].request_id or any(embed.atomic for embed in chunk.embeds):
        return False
    if chunk.embeds and view.prompts[0] in view.waiting:
        return False
    decodes = Work.of_decodes(seq.total for seq in view.decodes)
    room_s = max(0.01, cost.coefficients.forward_s(decodes))
    taken_s = cost.coefficients.forward_s(work_of(chunks)) - cost.coefficients.base_s
    assert chunk.num_tokens <= 16 or taken_s <= room_s * (1 + 1e-6), "a prompt chunk takes longer than it may"
    return True


def _check_no_decode_is_stalled(step: Step, view: View | None) -> None:
    assert view is not None
    booked = {chunk.request_id: chunk.num_tokens for chunk in step.chunks}
    assert sum(booked.get(seq.request_id, 0) for seq in view.decodes) <= view.token_budget
    for seq in view.decodes:
        is_preempted = seq.state is SeqState.PREEMPTED
        lacks_block = seq.table.num_missing(seq.computed + 1) > 0
        assert seq.request_id in booked or is_preempted or lacks_block, f"{seq}: a running decode is left out"


def _check_end(trace: Trace, scheduler: Scheduler, runner: ContractRunner, outcome: Outcome) -> None:
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0), "a leak"
    # Sound schedules stay under one preemption per request; endless preempting and admitting reaches ten.
    assert stats.num_preemptions_total <= 2 * len(trace.requests), "thrashing"
    for truth in runner.truths.values():
        assert truth.finish_reason is not None, "a request was never answered"
        answer = expected_answer(truth.request, trace.limits)
        if truth.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert (truth.outputs, truth.finish_reason) == answer, "the answer depends on the schedule"
        else:
            assert truth.outputs == answer[0][: len(truth.outputs)], "a cut answer begins differently"
    outcome.num_preemptions = stats.num_preemptions_total
    outcome.num_hit_tokens = stats.prefix_hits_total
    outcome.num_encoded = len(runner.num_encodings)
    outcome.num_reencoded = sum(runner.num_encodings.values()) - outcome.num_encoded

"""latency-target: what it plans from a known cost, and how it does on machines with noise, hiccups and bent costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count, pairwise

import pytest

from backend.errors import ConfigError
from backend.sched.cost import CostModel
from backend.sched.latency_target import LatencyTarget
from backend.sched.room import FLOOR_TOKENS
from backend.sched.scheduler import Scheduler
from backend.sched.sequence import SeqState, Sequence
from backend.sched.view import View
from backend.types.result import StepResult
from backend.types.step import EncodeSlice, Step
from tests.fuzz.machine import Machine
from tests.unit.sched.builders import BACKGROUND, LIMITS, World, booked, encoded, image, request, sequence
from tests.unit.sched.test_cost import learn, mixed_steps, step_of

CAT = image("cat", 64, num_slices=6)


def learned(machine: Machine | None = None) -> CostModel:
    """Of an exact machine: 10 ms a step, 0.8 ms a sequence, 0.5 ms a token, slices of 8, 4 and 12 ms in turn."""
    machine = machine or Machine()
    cost = learn(machine, mixed_steps(200))
    return learn(machine, [step_of([9], (), EncodeSlice(CAT, i, 1)) for _ in range(3) for i in range(6)], cost)


def decoding(number: int) -> tuple[Sequence, ...]:
    seqs = tuple(sequence(request(f"d{i}", 10, max_tokens=9), computed=10, arrival=i) for i in range(number))
    for seq in seqs:
        seq.move_to(SeqState.RUNNING, 0)
        seq._tokens.append(5)
    return seqs


def view(num_decodes: int, *prompts: Sequence, images: tuple[EncodeSlice, ...] = (), step_id: int = 0) -> View:
    return View(step_id, decoding(num_decodes), prompts, (), 32, 1024, images)


def prompt(length: int = 500, **kind: object) -> Sequence:
    seq = sequence(request("prompt", length, **kind), arrival=99)  # type: ignore[arg-type]
    seq.move_to(SeqState.RUNNING, 0)
    return seq


def tokens(policy: LatencyTarget, seen: View) -> int:
    (first, second) = policy.lanes(seen)
    assert first.seqs == seen.decodes
    assert first.tokens == second.tokens
    return first.tokens


def test_the_budget_is_what_fits_the_target() -> None:
    """50 ms less 4 % margin less 10 ms, 2 decodes at 1.3 ms and a sequence: 34.6 ms at 0.5 ms a token."""
    assert tokens(LatencyTarget(learned(), 0.050), view(2, prompt())) == pytest.approx(2 + 69, abs=3)
    assert tokens(LatencyTarget(learned(), 0.100), view(2, prompt())) == pytest.approx(2 + 165, abs=5)


def test_more_decodes_leave_less_and_never_less_than_the_floor() -> None:
    policy = LatencyTarget(learned(), 0.050)
    budgets = [tokens(policy, view(n, prompt())) - n for n in (1, 8, 16, 25, 32)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[-1] == FLOOR_TOKENS
    assert tokens(policy, view(32, prompt(request_class=BACKGROUND))) == 32 + FLOOR_TOKENS


def test_a_step_nobody_waits_for_may_be_longer_but_not_endless() -> None:
    policy = LatencyTarget(learned(), 0.050)
    assert 300 < tokens(policy, view(0, prompt(2000))) < 400
    assert tokens(LatencyTarget(learned(), 5.0), view(0, prompt(2000))) == 2 * learned().max_tokens, "beyond is a guess"


def test_guesses_are_priced_and_take_half_of_what_prompts_want() -> None:
    """40 ms less margin and less 12.6 ms of two decodes: 25.9 ms at 1.3 ms a guess."""
    policy = LatencyTarget(learned(), 0.040)
    guessing = {n: replace(view(2), num_drafts=n) for n in (0, 4, 100)}
    assert [policy.drafts(seen) for seen in guessing.values()] == [0, 4, pytest.approx(20, abs=1)]
    beside, without = replace(view(2, prompt()), num_drafts=100), view(2, prompt())
    assert policy.drafts(beside) == pytest.approx(10, abs=1)
    spent = tokens(policy, without) - (tokens(policy, beside) - policy.drafts(beside))
    assert spent == pytest.approx(26, abs=4), "13 ms at half a millisecond a prompt token"
    assert LatencyTarget(learned(), 0.012).drafts(guessing[100]) == 0, "there is no time left"
    assert policy.drafts(replace(guessing[100], token_budget=8)) == 6, "the operator's budget bounds them, too"


def test_the_next_slice_goes_before_prompt_tokens() -> None:
    policy = LatencyTarget(learned(), 0.050)
    pending = (EncodeSlice(CAT, 2, 4),)
    without, beside = view(2, prompt()), view(2, prompt(), images=pending)
    assert policy.slices(without) == 0
    assert policy.slices(beside) == 1
    assert tokens(policy, without) - tokens(policy, beside) == pytest.approx(24, abs=2), "12 ms of tokens"


def test_slices_fill_what_prompts_leave() -> None:
    """8 + 4 + 12 + 8 ms fit into 35 ms, 4 more do not; another picture's slices come after the first one's last."""
    policy = LatencyTarget(learned(), 0.050)
    dog = image("dog", 64, num_slices=6)
    assert policy.slices(view(2, images=(EncodeSlice(CAT, 0, 6),))) == 4
    assert policy.slices(view(2, images=(EncodeSlice(CAT, 4, 2), EncodeSlice(dog, 0, 6)))) == 4
    assert LatencyTarget(learned(), 0.014).slices(view(2, images=(EncodeSlice(CAT, 0, 6),))) == 1, "the floor"


def test_a_slice_and_a_prompt_that_do_not_fit_together_take_turns() -> None:
    policy = LatencyTarget(learned(), 0.030)
    pending = (EncodeSlice(CAT, 2, 4),)
    even, odd = (view(2, prompt(), images=pending, step_id=i) for i in (6, 7))
    assert (tokens(policy, even), policy.slices(even)) == (2, 1)
    assert (tokens(policy, odd) > 2 + FLOOR_TOKENS, policy.slices(odd)) == (True, 0)
    for step_id in (6, 7):
        assert policy.slices(view(2, images=pending, step_id=step_id)) == 1, "nobody to take turns with"


def test_no_first_token_of_a_chat_waits_for_a_pile_of_slices() -> None:
    policy = LatencyTarget(learned(), 0.025)
    pending = (EncodeSlice(CAT, 0, 6),)
    for_a_camera = policy.slices(view(0, prompt(20, request_class=BACKGROUND), images=pending))
    for_a_chat = policy.slices(view(0, prompt(20), images=pending))
    assert for_a_camera is not None
    assert for_a_chat is not None
    assert for_a_chat < for_a_camera


def test_nothing_measured_leaves_it_to_the_operator() -> None:
    policy = LatencyTarget(target_s=0.05)
    seen = view(2, prompt(), images=(EncodeSlice(CAT, 0, 6),))
    assert (tokens(policy, seen), policy.slices(seen)) == (32, None)
    assert LatencyTarget().target_s == 0.0


def test_a_target_below_a_bare_decode_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target of 11 ms cannot be met: a bare decode step takes 11\.3 ms"):
        LatencyTarget(learned(), 0.011)
    assert LatencyTarget(learned(), 0.012).target_s == 0.012
    assert LatencyTarget(learned()).target_s == pytest.approx(2 * 0.0113, rel=0.01), "the default"


def test_an_image_that_is_all_there_is_gets_on() -> None:
    """The step would be empty otherwise: nothing of the prompt comes before the picture."""
    world = World(LatencyTarget(learned(), 0.012))
    world.runner.may_encode_at_will = True
    world.submit(request("camera", image("i", 6, num_slices=2), 4))
    assert (booked(world.step()), encoded(world.step())) == ({}, {"i": 1})
    world.run()


@dataclass
class Ride:
    """What a simulation came to, its first third left out: the steps and their seconds."""

    steps: list[Step]
    seconds: list[float]

    def percentile_s(self, share: float) -> float:
        """Of the steps that somebody waited for."""
        waited = sorted(s for step, s in zip(self.steps, self.seconds, strict=True) if step.num_decode_tokens)
        return waited[int(share * (len(waited) - 1))]

    @property
    def prefill_tokens(self) -> int:
        return sum(step.num_prefill_tokens for step in self.steps)


def ride(machine: Machine, target_s: float, *, with_camera: bool = True, num_steps: int = 1000) -> Ride:
    """Two chats without end, now and then a long prompt, a camera that always has a frame; nothing learned yet."""
    limits = replace(
        LIMITS,
        max_num_batched_tokens=64,
        hard_num_batched_tokens=1024,
        max_num_seqs=8,
        max_model_len=4000,
        num_blocks=4000,
        encoder_cache_embeds=500,
    )
    scheduler = Scheduler(limits, LatencyTarget(target_s=target_s))
    result, alive, ids = Ride([], []), Counter[str](), count()
    for number in range(num_steps):
        while alive["chat"] < 2:
            scheduler.submit(request(f"chat {next(ids)}", 30, max_tokens=150))
            alive["chat"] += 1
        if with_camera and not alive["camera"]:
            frame = image(f"frame {number}", 16, num_slices=12)
            scheduler.submit(request(f"camera {next(ids)}", 10, frame, 20, max_tokens=20, request_class=BACKGROUND))
            alive["camera"] += 1
        if number % 300 == 50:
            scheduler.submit(request(f"report {next(ids)}", 1200, max_tokens=4))
        step = scheduler.schedule()
        assert step is not None
        events = scheduler.apply(StepResult(step.step_id, {c.request_id: (7,) for c in step.chunks if c.samples}))
        alive.subtract(event.request_id.split()[0] for event in events if event.finish_reason)
        seconds = machine.time_s(step)
        scheduler.policy.observe(step, seconds)
        if number >= num_steps // 3:
            result.steps.append(step)
            result.seconds.append(seconds)
    return result


@pytest.mark.parametrize(
    "machine",
    [
        Machine(noise=0.05),
        Machine(noise=0.1, seed=1),
        Machine(noise=0.1, hiccup_odds=0.005, seed=2),
        Machine(noise=0.05, token_s=0.0003, token_power=1.2),
        Machine(noise=0.05, token_s=0.001, token_power=0.8),
    ],
    ids=["steady", "noisy", "hiccups", "convex", "concave"],
)
@pytest.mark.parametrize("target_s", [0.035, 0.060])
def test_steps_stay_within_the_target_while_prompts_and_pictures_get_on(machine: Machine, target_s: float) -> None:
    result = ride(machine, target_s)
    assert result.percentile_s(0.5) <= target_s
    assert result.percentile_s(0.98) <= 1.2 * target_s
    assert result.prefill_tokens > 2000, "all that came in"
    assert sum(step.num_encoder_slices for step in result.steps) > 200


def test_a_target_is_used_and_not_only_kept() -> None:
    """While a long prompt is there, steps are nearly as long as they may be."""
    result = ride(Machine(noise=0.03), 0.060, with_camera=False)
    full = sorted(s for step, s in zip(result.steps, result.seconds, strict=True) if step.num_prefill_tokens > 40)
    assert full[len(full) // 2] > 0.75 * 0.060


@pytest.mark.parametrize("seed", range(3))
def test_the_budget_does_not_oscillate(seed: int) -> None:
    """A chat with the same context throughout and a noisy machine: few changes of budget, each of them small."""
    policy, machine = LatencyTarget(learned(), 0.050), Machine(noise=0.1, seed=seed)
    budgets: list[int] = []
    for number in range(600):
        seen = view(2, prompt(2000), step_id=number)
        budgets.append(tokens(policy, seen))
        prompt_chunk = [(100, budgets[-1] - 2)] if number % 3 else []
        step = step_of([10, 10], prompt_chunk)
        policy.observe(step, machine.time_s(step))
    steady = budgets[200:]
    changes = sum(a != b for a, b in pairwise(steady))
    assert changes <= len(steady) // 10
    assert max(steady) <= 1.35 * min(steady)


def test_a_machine_that_slows_down_is_followed() -> None:
    policy, machine = LatencyTarget(learned(), 0.050), Machine(noise=0.05, slowdown=1.0)
    seconds: list[float] = []
    for number in range(400):
        if number == 200:
            machine.slowdown = 2.0
        seen = view(2, prompt(2000), step_id=number)
        step = step_of([10, 10], [(0, tokens(policy, seen) - 2)])
        seconds.append(machine.time_s(step))
        policy.observe(step, seconds[-1])
    assert max(seconds[250:]) < 0.065

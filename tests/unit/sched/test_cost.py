"""The cost of a step, against machines whose true costs are known."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from backend.sched.cost import CostModel, StepCost, Work, work_of
from backend.sched.least_squares import solve_non_negative
from backend.types.request import SamplingParams
from backend.types.step import Chunk, EncodeSlice, Step
from tests.fuzz.machine import Machine
from tests.unit.sched.builders import image


def chunk(start: int, num_tokens: int, *, is_decode: bool = False) -> Chunk:
    ids = tuple(range(num_tokens))
    return Chunk("r", start, ids, (ids,), (), (), is_decode, 0, SamplingParams(1), is_decode)


def step_of(decodes: Iterable[int] = (), prompts: Iterable[tuple[int, int]] = (), *encodes: EncodeSlice) -> Step:
    """Decodes by their context, prompt chunks by (start, tokens)."""
    chunks = [chunk(start, 1, is_decode=True) for start in decodes] + [chunk(*prompt) for prompt in prompts]
    return Step(0, tuple(chunks), encodes)


def mixed_steps(count: int, seed: int = 0) -> list[Step]:
    """As serving makes them: some decodes, now and then a prompt chunk behind some context."""
    rng = random.Random(seed)
    steps = []
    for _ in range(count):
        decodes = [rng.randrange(4000) for _ in range(rng.randint(1, 8))]
        prompts = [(rng.randrange(3000), rng.randint(1, 200))] if rng.random() < 0.5 else []
        steps.append(step_of(decodes, prompts))
    return steps


def learn(machine: Machine, steps: Iterable[Step], cost: CostModel | None = None) -> CostModel:
    cost = cost or CostModel()
    for step in steps:
        cost.observe(step, machine.time_s(step))
    return cost


def errors(cost: CostModel, machine: Machine, steps: Iterable[Step]) -> list[float]:
    return sorted(abs(cost.predict_s(step) / machine.exact_s(step) - 1.0) for step in steps)


def test_work_counts_the_context_that_each_chunk_reads() -> None:
    assert work_of(step_of([9, 99], [(10, 20)]).chunks) == Work(
        sequences=3, tokens=22, kv_tokens=10 + 100 + 30, pairs=10 + 100 + sum(range(11, 31))
    )


def test_a_step_without_tokens_costs_no_base() -> None:
    assert StepCost(1.0, 1.0, 1.0, 1.0, 1.0).forward_s(Work(0, 0, 0, 0)) == 0.0


def test_an_exact_machine_is_recovered_exactly() -> None:
    found = learn(Machine(), mixed_steps(200)).coefficients
    assert found.base_s == pytest.approx(0.010, rel=1e-3)
    assert found.sequence_s == pytest.approx(0.0008, rel=1e-3)
    assert found.token_s == pytest.approx(0.0005, rel=1e-3)
    assert found.kv_token_s == pytest.approx(0.4e-6, rel=1e-3)
    assert found.spread < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_hiccups_move_it_little(seed: int) -> None:
    machine = Machine(noise=0.1, hiccup_odds=0.02, kv_token_s=2e-6, seed=seed)
    cost = learn(machine, mixed_steps(400, seed))
    found = cost.coefficients
    assert found.token_s == pytest.approx(0.0005, rel=0.2)
    assert found.base_s == pytest.approx(0.010, rel=0.5)
    off = errors(cost, machine, mixed_steps(200, seed + 100))
    assert off[len(off) // 2] < 0.08
    assert off[-1] < 0.35
    assert 0.05 < found.spread < 0.25, "it knows how sure it is"


def test_one_hiccup_is_no_trend() -> None:
    machine, decode = Machine(noise=0.02), step_of([50])
    cost = learn(machine, mixed_steps(200))
    before = cost.predict_s(decode)
    cost.observe(decode, 5.0)
    assert cost.predict_s(decode) < 1.1 * before


@pytest.mark.parametrize("slowdown", [0.4, 2.5])
def test_it_follows_a_machine_that_changes_its_speed(slowdown: float) -> None:
    machine = Machine(noise=0.05)
    cost = learn(machine, mixed_steps(200))
    machine.slowdown = slowdown
    learn(machine, mixed_steps(150, seed=1), cost)
    off = errors(cost, machine, mixed_steps(100, seed=2))
    assert off[len(off) // 2] < 0.1


def test_what_a_prompt_token_costs_follows_the_pace_that_decodes_show() -> None:
    """On a machine that became twice as slow, or as fast, while only decodes ran."""
    for slowdown in (2.0, 0.5):
        machine = Machine(noise=0.05)
        cost = learn(machine, mixed_steps(200))
        machine.slowdown = slowdown
        learn(machine, [step_of([100 + i, 50]) for i in range(60)], cost)
        assert cost.coefficients.token_s == pytest.approx(0.0005 * slowdown, rel=0.3)
        chunk_beside = step_of([150, 100], [(20, 20)])
        assert cost.predict_s(chunk_beside) == pytest.approx(machine.exact_s(chunk_beside), rel=0.2)


def test_what_a_chunk_costs_behind_a_long_context_is_learned_apart_from_what_decodes_read() -> None:
    machine = Machine(kv_token_s=1e-6, pair_s=0.5e-6, noise=0.05)
    rng = random.Random(5)
    steps = [step_of([rng.randrange(900)] * 2, [(64 * i % 4000, 64)] if i % 2 else []) for i in range(200)]
    cost = learn(machine, steps)
    for seen in (step_of([500, 500]), step_of([500, 500], [(3500, 20)]), step_of([500], [(100, 60)])):
        assert cost.predict_s(seen) == pytest.approx(machine.exact_s(seen), rel=0.15)


def profile_steps() -> list[Step]:
    """As a start takes them: answers that join one by one, then prompts of a few lengths."""
    steps = [step_of([k] * k, [(0, 1)]) for width in (1, 2, 4, 8) for k in range(width)]
    steps += [step_of([6 + i] * width) for width in (1, 2, 4, 8) for i in range(6)]
    return steps + [step for n in (16, 48, 128, 320) for step in (step_of([], [(0, n)]), step_of([n]))]


def beside_others(machine: Machine, step: Step, odds: float) -> float:
    """Seconds of `step` where others get their turns, each of some milliseconds, in every 3 ms of it with such odds."""
    seconds = machine.time_s(step)
    turns = (machine.rng.choice((0.004, 0.004, 0.008, 0.012)) for _ in range(max(1, int(seconds / 0.003))))
    return seconds + sum(turn for turn in turns if machine.rng.random() < odds)


@pytest.mark.parametrize("odds", [0.5, 0.9])
@pytest.mark.parametrize("seed", range(12))
def test_a_profile_taken_beside_other_programs_is_put_right_within_a_second_of_serving(odds: float, seed: int) -> None:
    """Decodes after 25 of them, prompts after 8; and what was put right stays so, whatever step comes next."""
    machine, cost = Machine(base_s=0.005, sequence_s=0.0003, token_s=0.0003, noise=0.05, seed=seed), CostModel()
    for step in profile_steps():
        cost.observe(step, beside_others(machine, step, odds))
    decode, prompt = step_of([200, 200]), step_of([200, 200], [(20, 50)])
    assert cost.predict_s(decode) > 1.3 * machine.exact_s(decode), "it was wrong"
    learn(machine, [step_of([40 + i, 90 + i]) for i in range(25)], cost)
    assert cost.predict_s(decode) == pytest.approx(machine.exact_s(decode), rel=0.2)
    for i in range(8):
        learn(machine, [step_of([100 + i, 150], [(0, 30 + 5 * i)]), step_of([100, 150 + i, 40])], cost)
    for i in range(150):
        learn(machine, [step_of([200 + i, 200], [(0, 40)] if i % 10 == 0 else [])], cost)
        assert cost.predict_s(decode) == pytest.approx(machine.exact_s(decode), rel=0.2)
        assert cost.predict_s(prompt) == pytest.approx(machine.exact_s(prompt), rel=0.25)


def test_a_profile_of_few_prompts_knows_what_a_prompt_token_costs() -> None:
    """Decodes, which come first, say next to nothing of it, and are well known by then."""
    for seed in range(12):
        machine = Machine(base_s=0.005, sequence_s=0.0001, token_s=0.0005, noise=0.1, seed=seed)
        cost = learn(machine, profile_steps())
        assert cost.coefficients.token_s == pytest.approx(0.0005, rel=0.3)


@pytest.mark.parametrize("slowdown", [1.6, 2.2])
def test_decodes_beside_the_reading_of_a_picture_are_not_taken_for_their_cost(slowdown: float) -> None:
    """A camera's cycle: its next picture is read beside seven decode steps, then encoded, then told of by 24 decodes.

    So decodes of the chats alone are timed only while the picture is read.
    """
    machine = Machine(base_s=0.006, sequence_s=0.0006, token_s=0.00015, slice_s=(0.003,), noise=0.07)
    cost = learn(machine, profile_steps())
    decode, picture = step_of([100, 100]), image("a", num_slices=60)
    for _ in range(10):
        machine.slowdown = slowdown
        learn(machine, [decode] * 7, cost)
        machine.slowdown = 1.0
        learn(machine, [step_of([100, 100], [], EncodeSlice(picture, k, 3)) for k in range(0, 60, 3)], cost)
        learn(machine, [step_of([100, 100, 90])] * 24, cost)
    learn(machine, [step_of([100, 100], [], EncodeSlice(picture, k, 3)) for k in range(0, 60, 3)], cost)
    assert cost.predict_s(decode) < 1.25 * machine.exact_s(decode)
    assert cost.slices.slice_s(picture, 30) == pytest.approx(0.003, rel=0.25)


def test_what_steps_say_nothing_about_stays_known() -> None:
    """A thousand decodes of one sequence do not wear out what a prompt token costs."""
    machine = Machine(noise=0.1)
    cost = learn(machine, mixed_steps(200))
    learn(machine, [step_of([100 + i]) for i in range(1000)], cost)
    assert cost.coefficients.token_s == pytest.approx(0.0005, rel=0.3)


def test_coefficients_are_never_negative() -> None:
    rng = random.Random(3)
    cost = CostModel()
    for step in mixed_steps(300, seed=3):
        cost.observe(step, rng.choice((1e-6, 1e-3, 1.0)))
        found = cost.coefficients
        assert min(found.base_s, found.sequence_s, found.token_s, found.kv_token_s, found.pair_s) >= 0.0


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0, float("inf"), float("nan")])
def test_times_that_cannot_be_are_passed_over(elapsed_s: float) -> None:
    cost = learn(Machine(), mixed_steps(20))
    before = cost.coefficients
    cost.observe(step_of([5]), elapsed_s)
    assert cost.coefficients == before


def test_slices_are_learned_one_by_one_from_mixed_steps() -> None:
    machine, cost = Machine(noise=0.02), learn(Machine(), mixed_steps(200))
    cat = image("cat", 64, num_slices=6)
    for _ in range(10):
        learn(machine, [step_of([50, 60], (), EncodeSlice(cat, index, 1)) for index in range(6)], cost)
    slices = [cost.slices.slice_s(cat, index) for index in range(6)]
    assert slices == pytest.approx([0.008, 0.004, 0.012] * 2, rel=0.2)
    whole = step_of([50], (), EncodeSlice(cat, 0, 6))
    assert cost.predict_s(whole) == pytest.approx(machine.exact_s(whole), rel=0.1)


def test_it_explains_itself() -> None:
    assert str(StepCost(0.010, 0.0008, 0.0005, 0.4e-6, 0.05e-6, 0.07)) == (
        "10.00 ms a step + 0.80 ms a sequence + 0.500 ms a token + 0.40 µs a token of KV + 0.05 µs a "
        "token and one before it, ± 7%"
    )


def test_non_negative_solutions() -> None:
    both, zeros = range(2), [0.0, 0.0]
    assert solve_non_negative([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0], zeros, both) == [1.0, 0.5]
    assert solve_non_negative([[2.0, 1.0], [1.0, 2.0]], [4.0, -1.0], zeros, both) == [2.0, 0.0]
    assert solve_non_negative([[1.0, 0.0], [0.0, 1.0]], [-1.0, -1.0], zeros, both) == [0.0, 0.0]
    assert solve_non_negative([[2.0, 1.0], [1.0, 2.0]], [4.0, 9.0], [7.0, 1.0], (0,)) == [1.5, 1.0]

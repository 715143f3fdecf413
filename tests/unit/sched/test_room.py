"""A budget by time: what stall-free gives prompts, slices and guesses where nobody chose the token budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.sched.cost import CostModel, StepCost, Work, work_of
from backend.sched.policy import StallFree, make_policy
from backend.sched.room import FLOOR_TOKENS, divide, drafts_within, has_need
from backend.sched.sequence import SeqState, Sequence
from backend.sched.slice_costs import SliceCosts
from backend.sched.view import View
from backend.types.step import EncodeSlice
from tests.fuzz.machine import Machine
from tests.unit.sched.builders import BACKGROUND, World, booked, image, request, sequence
from tests.unit.sched.test_cost import learn, mixed_steps, step_of
from tests.unit.sched.test_latency_target import CAT, learned, prompt, view

PENDING = (EncodeSlice(CAT, 2, 4),)


def by_time(seen: View) -> View:
    return replace(seen, is_budget_exact=False, token_budget=64)


def prompt_tokens(policy: StallFree, seen: View) -> int:
    first, second = policy.lanes(seen)
    assert first.seqs == seen.decodes
    return second.tokens - len(seen.decodes) - policy.drafts(seen)


def slow_num_tokens(room_s: float, computed: int, cost: StepCost) -> int:
    """The oracle: one token more as long as the chunk, priced as the cost model prices steps, ends in time."""
    number = 0
    while number < 5000:
        chunks = step_of((), [(computed, number + 1)]).chunks
        if cost.forward_s(work_of(chunks)) - cost.base_s > room_s:
            break
        number += 1
    return number


@pytest.mark.parametrize("room_s", [0.0, 0.004, 0.0101, 0.05])
@pytest.mark.parametrize("computed", [0, 100, 3000])
@pytest.mark.parametrize("pair_s", [0.0, 1e-7, 1e-5])
def test_tokens_are_as_many_as_counting_them_one_by_one_gives(room_s: float, computed: int, pair_s: float) -> None:
    cost = StepCost(0.01, 0.0008, 0.0004, 0.4e-6, pair_s)
    seq = prompt(4500)
    seq.table.grow_to(0)
    seq.computed = computed
    found = divide(view(1, seq), (seq,), room_s, cost, SliceCosts()).tokens
    assert found == pytest.approx(max(FLOOR_TOKENS, slow_num_tokens(room_s, computed, cost)), abs=1)


def test_a_prompt_beside_decodes_gets_their_time_again_and_never_less_than_the_floor() -> None:
    """Two decodes take 12.6 ms: of as much, less 0.8 for a sequence, a token takes half a millisecond."""
    policy = StallFree(learned())
    assert prompt_tokens(policy, by_time(view(2, prompt()))) == pytest.approx(23, abs=1)
    assert prompt_tokens(policy, by_time(view(25, prompt()))) == 39, "43 ms hold more; the budget is the most there is"
    assert prompt_tokens(StallFree(learned(Machine(token_s=0.004))), by_time(view(2, prompt()))) == FLOOR_TOKENS


def test_ten_milliseconds_are_there_however_short_a_decode_is() -> None:
    fast = Machine(base_s=0.001, sequence_s=0.0001, token_s=0.0005)
    assert prompt_tokens(StallFree(learned(fast)), by_time(view(1, prompt()))) == pytest.approx(19, abs=1)


def test_nobody_who_decodes_nothing_measured_or_a_chosen_budget_mean_no_such_bound() -> None:
    policy, seen = StallFree(learned()), by_time(view(2, prompt()))
    assert {lane.tokens for lane in policy.lanes(by_time(view(0, prompt())))} == {64}
    assert {lane.tokens for lane in policy.lanes(replace(seen, is_budget_exact=True))} == {64}
    assert {lane.tokens for lane in StallFree().lanes(seen)} == {64}
    for name in ("prefill-first", "split-fuse"):
        other = make_policy(name, learned())
        assert other.lanes(seen) == other.lanes(replace(seen, is_budget_exact=True))


def test_prompts_and_slices_share_one_room() -> None:
    """12.6 ms: a slice of 12 leaves the prompt its turn; alone each has all of it."""
    policy = StallFree(learned())
    even, odd = (by_time(replace(view(2, prompt(), images=PENDING), step_id=i)) for i in (6, 7))
    assert (prompt_tokens(policy, even), policy.slices(even)) == (0, 1)
    assert (prompt_tokens(policy, odd), policy.slices(odd)) == (pytest.approx(23, abs=1), 0)
    small = image("small", 64, num_slices=8)
    cost = learn(Machine(slice_s=(0.002,)), [step_of([9], (), EncodeSlice(small, i, 1)) for i in range(8)], learned())
    pending = (EncodeSlice(small, 0, 8),)
    shared = by_time(view(2, prompt(), images=pending))
    assert (prompt_tokens(StallFree(cost), shared), StallFree(cost).slices(shared)) == (pytest.approx(19, abs=1), 1)
    short = by_time(view(2, prompt(8), images=pending))
    assert StallFree(cost).slices(short) == 3, "what 8 tokens leave of 12.6 ms"
    assert StallFree(cost).slices(by_time(view(2, images=pending))) == 6


def test_prompts_that_wait_for_an_image_of_a_batch_need_nothing_yet() -> None:
    """Whichever of its images that is."""
    first, mate = (image(key, 64, num_slices=8) for key in ("first", "mate"))
    waiting = [sequence(request(picture.key, 4, picture, 4), computed=4) for picture in (first, mate)]
    for seq in waiting:
        seq.move_to(SeqState.RUNNING, 0)
    seen = view(1, images=(EncodeSlice(first, 0, 8, (mate,)),))
    assert not has_need(seen, waiting)
    assert has_need(replace(seen, images=(EncodeSlice(first, 0, 8),)), waiting)


def test_guesses_take_as_long_as_the_decodes_and_half_of_it_on_top_of_other_work() -> None:
    """12.6 ms at 1.3 ms a guess where nothing else is to be done, else half of that."""
    policy = StallFree(learned())
    alone = replace(by_time(view(2)), num_drafts=40)
    assert policy.drafts(alone) == 9
    assert policy.drafts(replace(alone, images=PENDING)) == 4
    assert policy.drafts(replace(by_time(view(2, prompt())), num_drafts=40)) == 4
    assert policy.drafts(replace(view(2), num_drafts=40, token_budget=64, images=PENDING)) == 40, "a chosen budget"
    assert drafts_within(alone, 0.0, learned().coefficients) == (0, 0.0)


def test_a_span_that_may_not_be_split_overshoots_the_time_but_goes_on() -> None:
    world = World(StallFree(learned()), is_token_budget_exact=False, max_num_batched_tokens=40)
    world.runner.may_encode_at_will = True
    world.submit(request("chat", 4, max_tokens=30))
    world.step()
    world.submit(request("camera", image("i", 36), 4, atomic=True, request_class=BACKGROUND))
    chunks = [booked(step).get("camera") for step in world.run()]
    assert 36 in chunks


def world_with(cost: CostModel) -> World:
    world = World(StallFree(cost), is_token_budget_exact=False, max_num_batched_tokens=40)
    world.submit(request("chat", 4, max_tokens=20))
    world.step()
    world.submit(request("long", 60))
    return world


def test_a_number_is_exact_and_none_goes_by_time_again() -> None:
    world = world_with(learned(Machine(token_s=0.004)))
    assert booked(world.step())["long"] == FLOOR_TOKENS
    world.scheduler.set_token_budget(30)
    assert booked(world.step())["long"] == 29
    world.scheduler.set_token_budget(None)
    assert world.scheduler.stats().step_token_budget == 40
    assert booked(world.step())["long"] == 15, "the rest"
    world.run()


def test_the_time_of_decodes_is_what_the_model_says_of_them() -> None:
    cost = learned().coefficients
    assert cost.forward_s(Work.of_decodes([11, 11])) == pytest.approx(0.0126, rel=0.01)
    assert learn(Machine(), mixed_steps(1)).num_observed == 1


def test_sequences_in_a_view_are_only_read() -> None:
    seqs: tuple[Sequence, ...] = (prompt(500),)
    before = [(seq.computed, seq.total, seq.served_step) for seq in seqs]
    StallFree(learned()).lanes(by_time(view(2, *seqs)))
    assert [(seq.computed, seq.total, seq.served_step) for seq in seqs] == before

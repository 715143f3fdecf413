from __future__ import annotations

from dataclasses import replace

import pytest

from backend.config import STEP_POLICIES
from backend.errors import ConfigError
from backend.sched.cost import CostModel
from backend.sched.policy import POLICIES, make_policy
from backend.sched.sequence import SeqState, Sequence
from backend.sched.view import Lane, View
from backend.types.step import EncodeSlice
from tests.unit.sched.builders import BACKGROUND, World, booked, image, request, sequence
from tests.unit.sched.test_cost import step_of
from tests.unit.sched.test_latency_target import CAT, learned, view


def running(request_id: str, arrival: int, **kind: object) -> Sequence:
    seq = sequence(request(request_id, 10, **kind), arrival=arrival)  # type: ignore[arg-type]
    seq.move_to(SeqState.RUNNING, 0)
    return seq


def names(lane: Lane) -> str:
    return " ".join(seq.request_id for seq in lane.seqs)


VIEW = View(
    step_id=5,
    decodes=(running("decode", 0),),
    prefills=(running("chat1", 2), running("camera1", 1, request_class=BACKGROUND)),
    waiting=(sequence(request("chat2", 10), arrival=4), sequence(request("camera2", 10, request_class=BACKGROUND))),
    token_budget=16,
    hard_num_tokens=64,
)


def test_stall_free_books_decodes_then_prompts_by_class() -> None:
    first, second = make_policy("stall-free").lanes(VIEW)
    assert (names(first), first.tokens, first.exclusive) == ("decode", 16, False)
    assert (names(second), second.tokens, second.exclusive) == ("chat1 chat2 camera1 camera2", 16, False)


def test_prefill_first_gives_prompts_the_whole_step() -> None:
    first, second = make_policy("prefill-first").lanes(VIEW)
    assert (names(first), first.tokens, first.exclusive) == ("chat1 chat2 camera1 camera2", 64, True)
    assert (names(second), second.tokens) == ("decode", 16)


@pytest.mark.parametrize("name", ["stall-free", "prefill-first", "split-fuse"])
def test_guesses_take_what_decodes_leave_and_half_of_it_where_prompts_wait(name: str) -> None:
    alone = replace(VIEW, prefills=(), waiting=())
    policy = make_policy(name)
    assert [policy.drafts(replace(alone, num_drafts=n)) for n in (0, 9, 99)] == [0, 9, 15]
    assert [policy.drafts(replace(VIEW, num_drafts=n)) for n in (0, 5, 99)] == [0, 5, 7]


def test_an_unknown_policy_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="'fifo': choose one of stall-free, prefill-first"):
        make_policy("fifo")


@pytest.mark.parametrize("name", POLICIES)
def test_each_make_is_a_fresh_policy_with_its_name(name: str) -> None:
    assert make_policy(name).name == name
    assert make_policy(name) is not make_policy(name)


def test_split_fuse_gives_a_constant_total_to_the_shortest_first() -> None:
    world = World("split-fuse")
    world.submit(request("long", 40), request("short", 5))
    assert booked(world.step()) == {"short": 5, "long": 11}
    assert booked(world.step()) == {"short": 1, "long": 15}
    world.run()


def test_split_fuse_lets_a_short_prompt_overtake_a_running_one_but_no_chat_wait_for_a_camera() -> None:
    world = World("split-fuse")
    world.submit(request("long", 60))
    world.step()
    world.submit(request("camera", 4, request_class=BACKGROUND), request("short", 10))
    assert booked(world.step()) == {"short": 10, "long": 6}
    world.run()


def test_split_fuse_starves_no_long_prompt() -> None:
    """Short prompts without end, each of them a whole budget."""
    world = World("split-fuse", num_blocks=400, max_num_seqs=2)
    world.submit(request("long", 150, max_tokens=1))
    world.step()
    for number in range(60):
        world.submit(request(f"short{number}", 15, max_tokens=1))
        world.step()
        if world.answer("long")[1] is not None:
            return
    pytest.fail("the long prompt is still waiting")


def test_the_settings_offer_every_policy() -> None:
    assert tuple(POLICIES) == STEP_POLICIES


def test_a_target_is_for_the_policy_that_has_one() -> None:
    with pytest.raises(ConfigError, match="latency-target, not for split-fuse"):
        make_policy("split-fuse", target_s=0.05)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_learns_into_the_model_it_was_given(name: str) -> None:
    cost = CostModel()
    world = World(make_policy(name, cost))
    world.submit(request("a", 10))
    for step in world.run():
        world.scheduler.policy.observe(step, 0.01)
    assert cost.num_observed > 0
    assert world.scheduler.policy.cost is cost


def test_slices_take_the_time_of_the_steps_own_decodes() -> None:
    """Slices of 8, 4 and 12 ms in turn beside 2 decodes of 12.7 ms together, beside 25 of 43, and beside none."""
    pending = (EncodeSlice(CAT, 0, 6), EncodeSlice(image("dog", 64, num_slices=6), 0, 6))
    for name in ("stall-free", "prefill-first", "split-fuse"):
        policy = make_policy(name, learned())
        assert [policy.slices(view(decodes, images=pending)) for decodes in (2, 25, 0)] == [2, 5, 12]


def test_slices_fill_ten_milliseconds_beside_the_shortest_decode() -> None:
    cost = CostModel()
    for _ in range(50):
        cost.observe(step_of([9]), 0.002)
        cost.observe(step_of([9], (), EncodeSlice(CAT, 0, 6)), 0.002 + 6 * 0.0015)
    assert make_policy("stall-free", cost).slices(view(1, images=(EncodeSlice(CAT, 0, 6),))) == 6


def test_the_limits_decide_where_nothing_was_timed_or_no_image_has_a_place() -> None:
    assert make_policy("stall-free").slices(view(2, images=(EncodeSlice(CAT, 0, 6),))) is None
    assert make_policy("stall-free", learned()).slices(view(2)) is None

from __future__ import annotations

import pytest

from backend.errors import ConfigError
from backend.sched.policy import POLICIES, Lane, View, make_policy
from backend.sched.sequence import SeqState, Sequence
from backend.types import Step
from tests.unit.sched.builders import BACKGROUND, World, booked, request, sequence


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


def test_an_unknown_policy_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="'fifo': choose one of stall-free, prefill-first"):
        make_policy("fifo")


@pytest.mark.parametrize("name", POLICIES)
def test_each_make_is_a_fresh_policy_with_its_name(name: str) -> None:
    assert make_policy(name).name == name
    assert make_policy(name) is not make_policy(name)


class SplitFuse:
    """DeepSpeed-FastGen's order, in the words of the seam: shortest remainder first, a constant total."""

    name = "split-fuse"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        everybody = view.decodes + view.prefills + view.waiting
        return (Lane(tuple(sorted(everybody, key=lambda seq: (seq.remaining, seq.arrival))), view.token_budget),)

    def observe(self, step: Step, elapsed_s: float) -> None:
        pass


class LatencyTarget:
    """Stall-free with a budget that is learned from how long steps took."""

    name = "latency-target"

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s
        self.tokens_per_s = 1000.0

    def lanes(self, view: View) -> tuple[Lane, ...]:
        budget = max(len(view.decodes) + 1, min(int(self.target_s * self.tokens_per_s), view.hard_num_tokens))
        return (Lane(view.decodes, budget), Lane(view.prefills + view.waiting, budget))

    def observe(self, step: Step, elapsed_s: float) -> None:
        self.tokens_per_s = sum(chunk.num_tokens for chunk in step.chunks) / elapsed_s


def test_split_fuse_fits_the_seam() -> None:
    world = World(SplitFuse())
    world.submit(request("long", 40), request("short", 5))
    assert booked(world.step()) == {"short": 5, "long": 11}
    world.run()


def test_latency_target_fits_the_seam() -> None:
    policy = LatencyTarget(target_s=0.010)
    world = World(policy)
    world.submit(request("long", 60))
    step = world.step()
    assert booked(step) == {"long": 10}
    world.scheduler.policy.observe(step, elapsed_s=0.005)
    assert booked(world.step()) == {"long": 20}
    world.run()

"""The rules of design.md that a sketch broke under fuzzing, by their names (R4 and R6 are in test_limits.py)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from backend.sched import scheduler
from backend.sched.admission import choose_victims, has_blocks_for
from backend.sched.blocks import BlockPool
from backend.sched.policy import FixedBudget
from backend.sched.sequence import Sequence
from backend.sched.view import Lane, View
from backend.selftest.guesses import WildSpeculator
from tests.fuzz.contract_runner import VOCAB_SIZE
from tests.unit.sched.builders import BACKGROUND, World, booked, image, request, sequence


class YoungestFirst(FixedBudget):
    """Asks the running in the wrong order on purpose, so that whoever cannot get on is asked before whoever can."""

    name = "youngest-first"

    def lanes(self, view: View) -> tuple[Lane, ...]:
        running = sorted(view.decodes + view.prefills, key=lambda seq: seq.arrival, reverse=True)
        return (Lane((*running, *view.waiting), view.token_budget),)


def test_r1_a_running_prefill_that_gets_no_blocks_does_not_end_its_lane() -> None:
    world = World(YoungestFirst(), num_blocks=4)
    world.submit(request("old", 4, max_tokens=12), request("young", 2, image("cat", 4, num_slices=6)))
    while "old" in {seq.request_id for seq in world.scheduler._roster.running} or world.answer("old")[1] is None:
        assert "old" in booked(world.step()), "the old one was left out because the young one is short"
    assert world.scheduler.stats().num_preemptions_total == 1, "the young one was never short"
    world.run()


def test_r2_eviction_is_all_or_nothing() -> None:
    pool = BlockPool(6, 4)
    urgent = sequence(request("urgent", 40), computed=4, arrival=0, pool=pool)
    younger = [sequence(request(f"v{i}", 8), computed=8, arrival=i, pool=pool) for i in (1, 2)]
    assert pool.num_free == 1
    assert choose_victims(urgent, 2, younger, pool) == [younger[1]]
    assert choose_victims(urgent, 5, younger, pool) == [younger[1], younger[0]]
    assert choose_victims(urgent, 6, younger, pool) == [], "not even both would do, so neither is touched"
    assert choose_victims(younger[0], 4, [urgent, younger[1]], pool) == [], "the more urgent one is no candidate"


def test_r2_victims_are_background_first_then_the_youngest() -> None:
    pool = BlockPool(6, 4)
    seq = sequence(request("seq", 4), arrival=0, pool=pool)
    camera = sequence(request("camera", 8, request_class=BACKGROUND), computed=8, arrival=1, pool=pool)
    chats = [sequence(request(f"chat{i}", 8), computed=8, arrival=i, pool=pool) for i in (2, 3)]
    assert choose_victims(seq, 2, [*chats, camera], pool) == [camera]
    assert choose_victims(seq, 4, [*chats, camera], pool) == [camera, chats[1]]


def test_r2_blocks_that_others_share_free_nothing() -> None:
    pool = BlockPool(4, 4)
    first = sequence(request("first", tuple(range(8))), computed=8, arrival=1, pool=pool)
    first.table.publish(first.block_keys(2))
    second = sequence(request("second", tuple(range(8))), arrival=2, pool=pool)
    second.table.share(first.table.block_ids)
    seq = sequence(request("seq", 4), arrival=0, pool=pool)
    assert choose_victims(seq, 3, [second], pool) == []
    assert choose_victims(seq, 3, [first, second], pool) == [second, first]


@pytest.mark.parametrize(
    ("still_to_do", "num_free", "fits"),
    [
        pytest.param(4, 3, True, id="nothing more to do for the running one"),
        pytest.param(5, 3, False, id="the running one needs its next block"),
        pytest.param(5, 4, True, id="room for both"),
        pytest.param(12, 4, False, id="the running prompt is reserved to its end"),
    ],
)
def test_r3_nobody_is_admitted_while_someone_running_is_short(still_to_do: int, num_free: int, fits: bool) -> None:
    pool = BlockPool(1 + num_free, 4)
    running = sequence(request("running", still_to_do), computed=4, pool=pool)
    newcomer = sequence(request("new", 12), arrival=1, pool=pool)
    assert has_blocks_for(newcomer, [], [running], pool) is fits


def test_r3_cached_blocks_that_a_newcomer_shares_are_no_longer_free() -> None:
    pool = BlockPool(4, 4)
    first = sequence(request("first", tuple(range(8))), computed=8, pool=pool)
    first.table.publish(first.block_keys(2))
    hit = list(first.table.block_ids)
    first.table.release()
    newcomer = sequence(request("new", 16), arrival=1, pool=pool)
    assert has_blocks_for(newcomer, hit, [], pool)
    running = sequence(request("running", 4), computed=4, arrival=2, pool=pool)
    assert not has_blocks_for(newcomer, hit, [running], pool)


@pytest.mark.parametrize("policy", ["stall-free", "prefill-first"])
def test_r3_a_preempted_request_is_not_admitted_again_while_its_blocks_are_missing(policy: str) -> None:
    world = World(policy, num_blocks=8, enable_prefix_caching=False)
    world.submit(request("old", 11, max_tokens=16), request("young", 11, max_tokens=16))
    world.run(max_steps=60)
    assert world.scheduler.stats().num_preemptions_total == 1


def test_r3_nobody_joins_in_a_step_that_preempts() -> None:
    """The young one gives back more than the old one needs: enough for the newcomer, who must not overtake."""
    world = World(YoungestFirst(), num_blocks=7, enable_prefix_caching=False)
    world.submit(request("old", 12, max_tokens=16), request("young", 9, max_tokens=16))
    world.step()
    world.step()
    world.submit(request("newcomer", 3))
    step = world.step()
    while world.scheduler.stats().num_preemptions_total == 0:
        step = world.step()
    assert booked(step) == {"old": 1}
    served = [chunk.request_id for step in world.run() for chunk in step.chunks if not chunk.is_decode]
    assert served[0] == "young"


def test_r5_an_atomic_image_overshoots_the_soft_budget_but_not_the_hard_bound() -> None:
    world = World(max_num_batched_tokens=4, hard_num_batched_tokens=12, max_num_seqs=3)
    world.submit(request("chat", 2, max_tokens=9))
    world.step()
    world.submit(request("camera", 2, image("cat", 10), 2, atomic=True))
    assert booked(world.step()) == {"chat": 1, "camera": 2}
    assert booked(world.step()) == {"chat": 1, "camera": 10}
    assert booked(world.step()) == {"chat": 1, "camera": 2}


def test_r5_an_atomic_image_waits_for_a_step_with_room() -> None:
    world = World(max_num_batched_tokens=8, hard_num_batched_tokens=12, max_num_seqs=3)
    world.submit(request("chat", 22, max_tokens=2), request("camera", image("cat", 10), 2, atomic=True))
    assert booked(world.step()) == {"chat": 8}
    assert booked(world.step()) == {"chat": 8}
    assert booked(world.step()) == {"chat": 6}, "10 more would be 16"
    assert booked(world.step()) == {"chat": 1, "camera": 10}


def test_r6_every_decode_is_booked_at_the_smallest_budget() -> None:
    world = World(max_num_batched_tokens=4, max_num_seqs=4)
    world.submit(*(request(f"r{i}", 3, max_tokens=8) for i in range(4)))
    while any(world.answer(f"r{i}")[0] == [] for i in range(4)):
        world.step()
    assert world.step().num_decode_tokens == 4


@pytest.mark.parametrize("knows_the_rule", [True, False])
def test_r5_guesses_leave_room_for_a_span_that_cannot_be_split(
    knows_the_rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of 15 tokens and a decode fill the step: a chat full of guesses would keep it out."""
    if not knows_the_rule:
        monkeypatch.setattr(scheduler, "longest_atomic", lambda seqs: 0)
    world = World(max_num_seqs=2, hard_num_batched_tokens=16, num_speculative_tokens=8)
    truths = world.runner.truths

    def next_token(seq: Sequence, guesses: Seq[int]) -> int:
        return truths[seq.request_id].with_guesses(guesses).next_token()

    world.scheduler._speculator = WildSpeculator(8, VOCAB_SIZE, 0, next_token)
    world.submit(request("chat", 4, max_tokens=150))
    world.step()
    world.submit(request("camera", image("k", 15), atomic=True))
    steps = [world.step() for _ in range(12)]
    assert any(step.num_draft_tokens for step in steps)
    assert any("camera" in booked(step) and "chat" in booked(step) for step in steps) is knows_the_rule

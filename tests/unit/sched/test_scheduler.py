"""The life of requests: progress, ends, failures, cancelling, preemption."""

from __future__ import annotations

from typing import Any

import pytest

from backend.sched.policy import POLICIES
from backend.types.result import FinishReason, StepResult, TokenEvent
from tests.fuzz.contract_runner import VOCAB_SIZE, expected_answer
from tests.unit.sched.builders import World, booked, image, request

each_policy = pytest.mark.parametrize("policy", POLICIES)


def test_the_articles_example_1000_tokens_in_chunks_of_256() -> None:
    world = World(max_num_batched_tokens=256, hard_num_batched_tokens=256, max_model_len=1100, num_blocks=300)
    world.submit(request("article", 1000, max_tokens=1))
    assert [step.chunks[0].num_tokens for step in world.run()] == [256, 256, 256, 232]


def test_a_long_prompt_does_not_hold_up_a_running_decode() -> None:
    world = World()
    world.submit(request("chat", 5, max_tokens=10))
    world.step()
    world.submit(request("report", 100))
    for _ in range(6):
        assert booked(world.step()) == {"chat": 1, "report": 15}


def test_prefill_first_holds_it_up() -> None:
    world = World("prefill-first")
    world.submit(request("chat", 5, max_tokens=10))
    world.step()
    world.submit(request("report", 100, max_tokens=5))
    assert booked(world.step()) == {"report": 64}
    assert booked(world.step()) == {"report": 36}
    assert booked(world.step()) == {"chat": 1, "report": 1}
    world.submit(request("small", 3))
    assert booked(world.step()) == {"small": 3}, "no decode beside a prompt, although there is room"


def test_requests_join_and_leave_at_any_step() -> None:
    world = World()
    world.submit(request("a", 3, max_tokens=2))
    assert booked(world.step()) == {"a": 3}
    world.submit(request("b", 4, max_tokens=2))
    assert booked(world.step()) == {"a": 1, "b": 4}
    assert booked(world.step()) == {"b": 1}
    assert world.scheduler.schedule() is None


@each_policy
def test_length_ends_at_max_tokens(policy: str) -> None:
    world = World(policy)
    world.submit(request("a", 5, max_tokens=3))
    world.run()
    assert [event.finish_reason for event in world.events] == [None, None, FinishReason.LENGTH]
    assert len(world.answer("a")[0]) == 3


@pytest.mark.parametrize("limits", [{"max_model_len": 8}, {"num_blocks": 2, "block_size": 4, "max_model_len": 9}])
def test_length_ends_at_the_context(limits: dict[str, Any]) -> None:
    world = World(**limits)
    world.submit(request("a", 5, max_tokens=100))
    world.run()
    outputs, reason = world.answer("a")
    assert (5 + len(outputs), reason) == (limits["max_model_len"], FinishReason.LENGTH)


def test_a_stop_token_ends_without_being_an_answer() -> None:
    plain = request("a", 5, max_tokens=6)
    tokens, _ = expected_answer(plain, World().limits)
    stop = next(token for token in tokens[1:] if token != tokens[0])
    world = World()
    world.submit(request("a", 5, max_tokens=6, stop=frozenset({stop})))
    world.run()
    assert world.events[-1] == TokenEvent("a", None, FinishReason.STOP)
    assert world.answer("a")[0] == tokens[: tokens.index(stop)]


def test_a_stop_token_may_come_first() -> None:
    world = World()
    world.submit(request("a", 5, stop=frozenset(range(VOCAB_SIZE))))
    world.run()
    assert world.events == [TokenEvent("a", None, FinishReason.STOP, num_cached_tokens=0)]


def test_a_failed_request_ends_with_its_reason_and_the_others_go_on() -> None:
    world = World()
    world.submit(request("a", 5), request("b", 5))
    world.step(failed_requests=["a"])
    assert world.events[0] == TokenEvent("a", None, FinishReason.ERROR, "chunk failed")
    assert [event.request_id for event in world.events] == ["a", "b"]
    world.run()
    assert world.answer("b")[1] is FinishReason.LENGTH


def test_blocks_of_a_failed_chunk_are_not_shared() -> None:
    world = World()
    world.submit(request("a", tuple(range(12))))
    world.step(failed_requests=["a"])
    world.submit(request("b", tuple(range(12))))
    assert booked(world.step()) == {"b": 12}


def test_cancel_frees_blocks_at_once_and_keeps_them_known() -> None:
    world = World()
    world.submit(request("a", tuple(range(14)), max_tokens=9), request("b", 9, max_tokens=2))
    world.step()
    assert world.scheduler.stats().num_blocks_used > 0
    world.cancel("a")
    world.cancel("b")
    assert world.scheduler.stats().num_blocks_used == 0
    assert not world.scheduler.has_work()
    assert not world.scheduler.cancel("a")
    assert not world.scheduler.cancel("nobody")
    world.submit(request("again", tuple(range(14))))
    assert booked(world.step()) == {"again": 2}, "12 of 14 tokens are in full blocks"


def test_a_waiting_request_can_be_cancelled() -> None:
    world = World(max_num_seqs=1)
    world.submit(request("a", 5), request("b", 5))
    world.step()
    world.cancel("b")
    assert {chunk.request_id for step in world.run() for chunk in step.chunks} == {"a"}


def test_a_request_cancelled_while_its_step_runs_gets_nothing_more() -> None:
    world = World()
    world.submit(request("a", 5), request("b", 5))
    step = world.scheduler.schedule()
    assert step is not None
    result = world.runner.execute(step)
    world.cancel("a")
    assert [event.request_id for event in world.scheduler.apply(result)] == ["b"]
    world.scheduler.check()


def test_steps_and_results_alternate() -> None:
    world = World()
    world.submit(request("a", 5))
    step = world.scheduler.schedule()
    assert step is not None
    with pytest.raises(AssertionError, match="in flight"):
        world.scheduler.schedule()
    with pytest.raises(AssertionError, match="result of step 7"):
        world.scheduler.apply(StepResult(7, {}))


@each_policy
def test_preemption_recomputes_and_gives_the_same_tokens(policy: str) -> None:
    """Two growing answers in a pool for one and a half: the younger one gives way and comes back."""
    requests = [request("old", 9, max_tokens=20), request("young", 9, max_tokens=20)]
    world = World(policy, num_blocks=11)
    world.submit(*requests)
    steps = world.run()
    assert world.scheduler.stats().num_preemptions_total >= 1
    for made in requests:
        assert world.answer(made.request_id) == expected_answer(made, world.limits)
    restarts = [chunk for step in steps for chunk in step.chunks if chunk.sample_index > 0 and not chunk.is_decode]
    assert {chunk.request_id for chunk in restarts} == {"young"}


def test_preempted_requests_come_back_to_their_own_cached_blocks() -> None:
    world = World(num_blocks=11)
    world.submit(request("old", 9, max_tokens=20), request("young", 9, max_tokens=20))
    world.run()
    assert world.scheduler.stats().prefix_hits_total > 0


def test_an_image_survives_preemption_or_is_encoded_again() -> None:
    world = World(num_blocks=9, encoder_cache_embeds=6, max_model_len=40)
    world.submit(request("old", 9, max_tokens=20), request("young", 2, image("cat"), 2, max_tokens=20))
    world.run()
    assert world.scheduler.stats().num_preemptions_total >= 1


def test_nobody_overtakes_a_waiting_request_that_lacks_blocks() -> None:
    world = World(num_blocks=10, max_num_batched_tokens=64)
    world.submit(request("a", 24, max_tokens=4))
    world.step()
    world.submit(request("big", 30, max_tokens=1), request("small", 3, max_tokens=1))
    assert booked(world.step()) == {"a": 1}
    served = [request_id for step in world.run() for request_id in booked(step)]
    assert served.index("big") < served.index("small")


def test_stats_read_the_scheduler() -> None:
    world = World()
    world.submit(request("a", 9, image("cat")), *(request(f"r{i}", 3) for i in range(4)))
    world.step()
    stats = world.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (4, 1)
    assert (stats.num_blocks_used, stats.num_blocks_total) == (3 + 1 + 1 + 1, 100)
    assert (stats.encoder_embeds_used, stats.encoder_embeds_total) == (6, 100)

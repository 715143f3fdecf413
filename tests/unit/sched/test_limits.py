from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.errors import ConfigError, Overloaded, Rejected
from backend.sched.limits import context_len
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.types.request import Prepared, Request, SamplingParams
from tests.unit.sched.builders import LIMITS, World, image, request


@pytest.mark.parametrize(
    ("made", "limits", "code", "words"),
    [
        (request("a", 50), {"max_model_len": 50}, "context_length_exceeded", "50 tokens.*context is 50"),
        (request("a", 41), {"num_blocks": 10}, "kv_cache_exceeded", "41 tokens.*10 blocks of 4"),
        (request("a", 2, image("cat", 9)), {"encoder_cache_embeds": 8}, "image_too_large", "9 embeddings.*holds 8"),
        (
            request("a", 2, image("cat", 14), atomic=True),
            {"hard_num_batched_tokens": 16, "max_num_seqs": 4},
            "image_too_large",
            "14 tokens at once.*at most 13",
        ),
        (request("a"), {}, "empty_prompt", "empty"),
    ],
)
def test_r4_what_can_never_fit_is_refused_with_the_limit_named(
    made: Request, limits: dict[str, Any], code: str, words: str
) -> None:
    world = World(**limits)
    with pytest.raises(Rejected, match=words) as refusal:
        world.submit(made)
    assert (refusal.value.code, refusal.value.param) == (code, "messages")
    assert not world.scheduler.has_work()


@pytest.mark.parametrize(
    ("made", "limits"),
    [
        (request("a", 49), {"max_model_len": 50}),
        (request("a", 40), {"num_blocks": 10}),
        (request("a", 2, image("cat", 8)), {"encoder_cache_embeds": 8}),
        (
            request("a", 2, image("cat", 13), atomic=True),
            {"hard_num_batched_tokens": 16, "max_num_seqs": 4},
        ),
    ],
)
def test_r4_what_just_fits_is_served(made: Request, limits: dict[str, Any]) -> None:
    world = World(**limits)
    world.submit(made)
    world.run()
    assert world.answer("a")[0]


def test_r4_more_places_than_the_queue_has_are_refused_for_good() -> None:
    world = World(max_num_waiting=2)
    with pytest.raises(Rejected, match=r"The request asks for 3 choices.*max_num_waiting.*2 places") as refusal:
        world.submit(replace(request("a", 3), num_places=3))
    assert refusal.value.param == "n"
    world.submit(request("b", 3))
    with pytest.raises(Overloaded, match="1 requests are waiting already, and there must be 2 places"):
        world.submit(replace(request("a", 3), num_places=2))
    world.step()
    world.submit(replace(request("a", 3), num_places=2))


def test_max_tokens_below_one_is_refused() -> None:
    made = Request("a", request("a", 3).prompt, SamplingParams(max_tokens=0))
    with pytest.raises(Rejected) as refusal:
        World().submit(made)
    assert refusal.value.param == "max_tokens"


def test_placeholders_without_an_image_are_refused() -> None:
    whole = request("a", 2, image("cat")).prompt
    orphan = Prepared(whole.token_ids, (), whole.spans, whole.positions)
    with pytest.raises(Rejected, match="does not bring"):
        World().submit(Request("a", orphan, SamplingParams(max_tokens=1)))


def test_an_id_in_use_is_refused() -> None:
    world = World()
    world.submit(request("a", 3))
    with pytest.raises(Rejected, match="'a' is in use"):
        world.scheduler.submit(request("a", 3))


def test_a_full_queue_is_overloaded() -> None:
    world = World(max_num_waiting=2)
    world.submit(request("a", 3), request("b", 3))
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        world.submit(request("c", 3))
    world.step()
    world.submit(request("c", 3))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens is 3; it must be at least max_num_seqs \\(4\\)"),
        ({"max_num_batched_tokens": 65}, "max_num_batched_tokens is 65.*at most 64"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"idle_encoder_slices_per_step": 0}, "idle_encoder_slices_per_step is 0"),
    ],
)
def test_r6_contradicting_limits_are_refused_at_start(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Scheduler(replace(LIMITS, **limits), make_policy("stall-free"))


def test_r6_the_budget_can_be_moved_between_its_bounds_while_running() -> None:
    world = World()
    world.submit(request("a", 60))
    assert world.step().num_prefill_tokens == 16
    world.scheduler.set_token_budget(4)
    assert world.step().num_prefill_tokens == 4
    for refused in (3, 65):
        with pytest.raises(ConfigError, match=f"max_num_batched_tokens is {refused}"):
            world.scheduler.set_token_budget(refused)
    world.scheduler.set_token_budget(64)
    assert world.step().num_prefill_tokens == 40


@pytest.mark.parametrize(("max_model_len", "num_blocks", "expected"), [(30, 100, 30), (200, 5, 21)])
def test_context_is_the_models_or_the_pools(max_model_len: int, num_blocks: int, expected: int) -> None:
    assert context_len(replace(LIMITS, max_model_len=max_model_len, num_blocks=num_blocks)) == expected

"""What users of other engines report of chunked prompts: one test for each such report, by its number in the list of
reports (39 to 51). The runner of these worlds checks every token, position, image row and KV cell that a step names;
the same on real models is in `tests/equivalence`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.errors import Rejected
from backend.types.request import ImageInput, Prepared, Request, SamplingParams
from backend.types.result import FinishReason
from tests.fuzz.contract_runner import expected_answer
from tests.unit.sched.builders import BACKGROUND, World, booked, encoded, image, request

CAT, DOG = image("cat", 9, num_slices=3), image("dog", 7, num_slices=2)
HEAD = tuple(range(100, 110))
BUDGETS = (1, 2, 3, 5, 8, 64)


def alone(budget: int, **limits: Any) -> World:
    """A world in which chunks have at most `budget` tokens."""
    return World(max_num_batched_tokens=budget, max_num_seqs=1, **limits)


@pytest.mark.parametrize("budget", BUDGETS)
def test_39_an_image_cut_into_chunks_gives_each_row_once(budget: int) -> None:
    world = alone(budget)
    world.submit(request("a", 5, CAT, 3, DOG, 2))
    embeds = [embed for step in world.run() for chunk in step.chunks for embed in chunk.embeds]
    for picture in (CAT, DOG):
        rows = [row for e in embeds if e.key == picture.key for row in range(e.row, e.row + e.length)]
        assert rows == list(range(picture.num_embeds))


@pytest.mark.parametrize("budget", BUDGETS)
def test_40_the_answer_does_not_depend_on_the_size_of_chunks(budget: int) -> None:
    world, asked = alone(budget), request("a", 7, CAT, 9, max_tokens=8)
    world.submit(asked)
    world.run()
    assert world.answer("a") == expected_answer(asked, world.limits)


@pytest.mark.parametrize("budget", BUDGETS)
def test_41_positions_are_slices_of_the_requests_own_and_decodes_keep_their_delta(budget: int) -> None:
    rows = tuple(tuple(i // (row + 1) for i in range(12)) for row in range(3))
    prompt = Prepared(tuple(range(200, 212)), (), (), rows, decode_delta=-4)
    world = alone(budget)
    world.submit(Request("a", prompt, SamplingParams(4)))
    chunks = [chunk for step in world.run() for chunk in step.chunks]
    told = [[p for chunk in chunks for p in chunk.positions[row]] for row in range(3)]
    assert told == [[*row, 8, 9, 10] for row in rows]


@pytest.mark.parametrize("budget", BUDGETS)
def test_42_an_image_whose_tokens_see_one_another_is_never_cut(budget: int) -> None:
    world = alone(budget)
    world.submit(request("a", 5, CAT, 3, atomic=True))
    (whole,) = [e for step in world.run() for chunk in step.chunks for e in chunk.embeds]
    assert (whole.row, whole.length, whole.atomic) == (0, 9, True)


def test_42_one_that_no_step_can_hold_is_refused_at_once() -> None:
    world = World(hard_num_batched_tokens=16)
    with pytest.raises(Rejected, match="at most 13"):
        world.scheduler.submit(request("a", image("wide", 17), atomic=True))
    assert not world.scheduler.has_work()


@pytest.mark.parametrize("budget", BUDGETS)
def test_43_images_are_encoded_once_however_many_chunks_use_them(budget: int) -> None:
    world = alone(budget)
    world.submit(request("a", 5, CAT, 3, DOG, CAT))
    world.run()
    assert world.runner.num_encodings == {"cat": 1, "dog": 1}


def test_44_another_image_under_the_same_tokens_is_another_prefix() -> None:
    world = World()
    for name, picture in (("a", CAT), ("b", ImageInput("cat with other options", 9, 3))):
        world.submit(request(name, HEAD, picture, HEAD, max_tokens=1))
        world.run()
    assert world.scheduler.stats().prefix_hits_total == 8, "the two blocks before the image"
    assert world.runner.num_encodings == {"cat": 1, "cat with other options": 1}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("is_cached", [False, True])
def test_45_chunked_and_cached_prompts_have_the_answers_of_whole_ones(budget: int, is_cached: bool) -> None:
    world = alone(budget, enable_prefix_caching=is_cached)
    for name in ("first", "second"):
        asked = request(name, HEAD, CAT, HEAD, max_tokens=6)
        world.submit(asked)
        world.run()
        assert world.answer(name) == expected_answer(asked, world.limits)
    assert world.scheduler.stats().prefix_hits_total == (28 if is_cached else 0)


@pytest.mark.parametrize("budget", BUDGETS)
def test_46_images_at_any_offset_side_by_side_and_twice(budget: int) -> None:
    for shift in range(5):
        world, asked = alone(budget), request("a", shift + 1, CAT, CAT, DOG, 1, CAT, max_tokens=3)
        world.submit(asked)
        world.run()
        assert world.answer("a") == expected_answer(asked, world.limits)


def test_47_what_never_fits_is_refused_and_blocks_nobody() -> None:
    world = World(num_blocks=5, max_model_len=20, encoder_cache_embeds=9)
    for unfit, words in (
        (request("long", 21), "20"),
        (request("wide", image("wide", 10)), "9"),
    ):
        with pytest.raises(Rejected, match=words):
            world.scheduler.submit(unfit)
    world.submit(request("a", 5, CAT))
    world.run()
    assert world.answer("a")[1] is FinishReason.LENGTH


def test_47_a_request_may_fill_the_pool_to_its_last_block() -> None:
    world = World(num_blocks=5, max_model_len=20)
    asked = request("a", 18, max_tokens=2)
    world.submit(asked)
    world.run()
    assert world.answer("a") == expected_answer(asked, world.limits)


def test_48_images_that_push_each_other_out_of_the_cache_come_back() -> None:
    """Room for one of the two at a time; the cache is asked again after each eviction."""
    world = World(encoder_cache_embeds=9, max_num_batched_tokens=4)
    asked = [request(name, n, CAT, n, DOG, 2) for n, name in enumerate("abc", start=2)]
    world.submit(*asked)
    steps = world.run()
    assert any(step.evictions for step in steps)
    assert [world.answer(one.request_id) for one in asked] == [expected_answer(one, world.limits) for one in asked]


def test_49_preempted_requests_say_what_they_would_have_said() -> None:
    world = World(num_blocks=12, max_model_len=48, encoder_cache_embeds=9)
    asked = [request("a", 10, CAT, max_tokens=25), request("b", 9, DOG, max_tokens=25)]
    world.submit(*asked)
    world.run()
    assert world.scheduler.stats().num_preemptions_total > 0
    assert [world.answer(one.request_id) for one in asked] == [expected_answer(one, world.limits) for one in asked]


def test_50_answers_go_on_while_a_long_prompt_is_read() -> None:
    world = World(max_num_batched_tokens=8)
    world.submit(request("chat", 3, max_tokens=30))
    world.step()
    world.submit(request("document", 100, max_tokens=1))
    steps = world.run()
    reading = [step for step in steps if "document" in booked(step)]
    assert len(reading) > 10
    assert all("chat" in booked(step) for step in reading)


def test_50_and_a_camera_is_served_though_chats_never_end() -> None:
    world = World(max_num_seqs=1, background_aging_steps=10)
    world.submit(request("chat 0", 3, max_tokens=4))
    world.submit(request("camera", 3, max_tokens=1, request_class=BACKGROUND))
    for number in range(1, 20):
        world.submit(request(f"chat {number}", 3, max_tokens=4))
        for _ in range(4):
            if "camera" in booked(world.step()):
                return
    raise AssertionError("it starved")


def test_51_constant_text_before_the_image_is_found_again_for_every_picture() -> None:
    world = World()
    tokens_of: list[int] = []
    for number in range(3):
        world.submit(request(f"frame {number}", HEAD, image(f"frame {number}", 6), 4, max_tokens=1))
        tokens_of.append(sum(chunk.num_tokens for step in world.run() for chunk in step.chunks))
    assert tokens_of == [20, 12, 12]


def test_36_cancelled_requests_free_blocks_and_half_encoded_images_with_the_next_step() -> None:
    world = World(idle_encoder_slices_per_step=1)
    world.submit(request("a", 5, CAT), replace(request("b", 6, DOG), request_class=BACKGROUND))
    assert encoded(world.step()) == {"cat": 1}
    for name in ("a", "b"):
        world.cancel(name)
    assert world.scheduler.stats().num_blocks_used == 0
    assert world.step().evictions == ("cat",)
    assert world.scheduler.stats().encoder_embeds_used == 0

from __future__ import annotations

import pytest

from backend.types.request import ImageInput
from tests.unit.sched.builders import World, booked, encoded, image, request

CAT, DOG = image("cat", 6), image("dog", 6)
HEAD = tuple(range(100, 106))


def served(world: World, request_id: str, *pieces: int | tuple[int, ...] | ImageInput, atomic: bool = False) -> int:
    """Tokens computed for a request's prompt when it is served alone, images encoded before."""
    made = request(request_id, *pieces, max_tokens=1, atomic=atomic)
    world.submit(made)
    return sum(chunk.num_tokens for step in world.run() for chunk in step.chunks)


def test_two_images_under_one_prompt_never_share_kv_past_the_images_start() -> None:
    """The prompts' token ids are equal; only what is behind the placeholders differs. Blocks of 4, image at 6 to 11."""
    world = World()
    assert served(world, "first", HEAD, CAT, HEAD) == 18
    assert served(world, "second", HEAD, DOG, HEAD) == 18 - 4, "only the block before the image's is shared"
    assert served(world, "third", HEAD, CAT, HEAD) == 18 - 16


def test_the_same_image_elsewhere_is_another_prefix() -> None:
    """Rows of a block count: a tiled image may begin in the middle of its rows."""
    world = World()
    served(world, "first", HEAD, CAT, DOG)
    assert served(world, "second", HEAD, DOG, CAT) == 18 - 4


def test_images_inside_a_hit_are_not_encoded_again() -> None:
    world = World(encoder_cache_embeds=6)
    served(world, "first", HEAD, CAT, HEAD)
    served(world, "other", DOG)
    world.submit(request("second", HEAD, CAT, HEAD))
    step = world.step()
    assert (booked(step), encoded(step)) == ({"second": 2}, {})
    assert world.runner.num_encodings["cat"] == 1


def test_an_image_that_a_hit_covers_in_part_is_needed() -> None:
    world = World(encoder_cache_embeds=6)
    served(world, "first", HEAD, CAT)
    served(world, "other", DOG)
    world.submit(request("second", HEAD, CAT))
    step = world.step()
    assert (booked(step), encoded(step)) == ({}, {"cat": 1})
    assert booked(world.step()) == {"second": 4}


def test_an_atomic_image_is_shared_whole_or_not_at_all() -> None:
    """Blocks of 4, image at 6 to 11: the hit goes to 12 if the block that ends it is full, else back to 4."""
    world = World()
    served(world, "first", HEAD, CAT, HEAD, atomic=True)
    assert served(world, "longer", HEAD, CAT, HEAD, atomic=True) == 18 - 16
    assert served(world, "shorter", HEAD, CAT, atomic=True) == 12 - 4


@pytest.mark.parametrize(("length", "computed"), [(8, 4), (9, 1), (11, 3), (12, 4), (13, 1)])
def test_of_a_prompt_that_is_known_whole_the_last_token_is_computed(length: int, computed: int) -> None:
    world = World()
    tokens = tuple(range(length))
    served(world, "first", tokens)
    assert served(world, "second", tokens) == computed


def test_answers_are_part_of_the_next_turns_prefix() -> None:
    world = World()
    world.submit(request("first", tuple(range(8)), max_tokens=5))
    world.run()
    answer = tuple(world.answer("first")[0])
    assert served(world, "second", (*range(8), *answer, 5, 6)) == 3, (
        "12 tokens have their KV, the last answered one none"
    )


def test_a_running_request_shares_its_blocks() -> None:
    world = World()
    world.submit(request("first", tuple(range(12)), max_tokens=9))
    world.step()
    world.submit(request("second", (*range(12), 50)))
    assert booked(world.step()) == {"first": 1, "second": 1}
    assert world.scheduler.stats().num_blocks_used == 3 + 1 + 1
    world.cancel("first")
    world.run()


def test_blocks_are_not_shared_before_they_are_computed() -> None:
    world = World(max_num_batched_tokens=64)
    world.submit(request("first", tuple(range(12))), request("second", tuple(range(12))))
    assert booked(world.step()) == {"first": 12, "second": 12}


def test_without_prefix_caching_nothing_is_shared() -> None:
    world = World(enable_prefix_caching=False)
    served(world, "first", tuple(range(12)))
    assert served(world, "second", tuple(range(12))) == 12
    assert world.scheduler.stats().prefix_queries_total == 24
    assert world.scheduler.stats().prefix_hits_total == 0


def test_cached_blocks_are_given_up_when_they_are_needed() -> None:
    world = World(num_blocks=4)
    served(world, "first", tuple(range(12)))
    served(world, "filler", tuple(range(200, 216)))
    assert served(world, "second", tuple(range(12))) == 12


def test_the_first_event_of_an_answer_tells_what_was_found() -> None:
    """What is found again after a preemption was computed for this very request: it does not count."""
    world = World(num_blocks=9, max_num_seqs=2, max_model_len=36)
    served(world, "first", HEAD, 5)
    world.submit(request("a", HEAD, 4, max_tokens=20), request("b", HEAD, 7, max_tokens=20))
    world.run()
    assert world.scheduler.stats().num_preemptions_total > 0
    told: dict[str, list[int | None]] = {}
    for event in world.events:
        told.setdefault(event.request_id, []).append(event.num_cached_tokens)
    assert {name: counts[0] for name, counts in told.items()} == {"first": 0, "a": 4, "b": 4}
    assert all(count is None for counts in told.values() for count in counts[1:])

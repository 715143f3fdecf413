from __future__ import annotations

from backend.types.result import FinishReason
from tests.unit.sched.builders import BACKGROUND, World, booked, encoded, image, request

CAT, DOG = image("cat", num_slices=3), image("dog", num_slices=3)


def test_text_runs_up_to_the_image_and_on_when_it_is_there() -> None:
    world = World(max_encoder_slices_per_step=1, idle_encoder_slices_per_step=2)
    world.submit(request("a", 4, CAT, 2))
    step = world.step()
    assert (booked(step), encoded(step)) == ({"a": 4}, {"cat": 2})
    step = world.step()
    assert (booked(step), encoded(step)) == ({}, {"cat": 1})
    assert booked(world.step()) == {"a": 8}


def test_encoding_is_slow_beside_decodes_and_fast_without() -> None:
    world = World(max_encoder_slices_per_step=1, idle_encoder_slices_per_step=3)
    world.submit(request("chat", 3, max_tokens=3))
    world.step()
    world.submit(request("camera", CAT), request("camera2", DOG))
    assert encoded(world.step()) == {"cat": 1}
    assert encoded(world.step()) == {"cat": 1}
    assert encoded(world.step()) == {"cat": 1, "dog": 2}, "the chat is over"


def test_an_image_that_several_requests_wait_for_is_encoded_once() -> None:
    world = World()
    world.submit(*(request(f"r{i}", 4 + i, CAT) for i in range(3)))
    world.run()
    assert world.runner.num_encodings == {"cat": 1}


def test_a_resident_image_is_used_by_the_next_request() -> None:
    world = World()
    world.submit(request("a", 4, CAT))
    world.run()
    world.submit(request("b", 5, CAT))
    assert booked(world.step()) == {"b": 11}


def test_images_of_interactive_requests_come_first() -> None:
    world = World(idle_encoder_slices_per_step=1)
    world.submit(request("camera", CAT, request_class=BACKGROUND))
    assert encoded(world.step()) == {"cat": 1}
    world.submit(request("chat", DOG))
    assert [encoded(world.step()) for _ in range(3)] == [{"dog": 1}] * 3
    assert encoded(world.step()) == {"cat": 1}


def test_images_are_encoded_ahead_where_there_is_room() -> None:
    world = World(encoder_cache_embeds=12, idle_encoder_slices_per_step=4)
    world.submit(request("a", 2, CAT, 2, DOG, 2, image("cow")))
    assert encoded(world.step()) == {"cat": 3, "dog": 1}
    step = world.step()
    assert (booked(step), encoded(step)) == ({"a": 8}, {"dog": 2})
    step = world.step()
    assert (booked(step), encoded(step), step.evictions) == ({"a": 8}, {"cow": 1}, ("cat",))
    assert booked(world.step()) == {"a": 6}


def test_an_image_is_not_evicted_in_the_step_that_reads_it() -> None:
    world = World(encoder_cache_embeds=6)
    world.submit(request("a", 2, CAT), request("b", 2, DOG))
    world.step()
    step = world.step()
    assert booked(step) == {"a": 6}
    assert encoded(step) == {}, "the cat is being read"
    step = world.step()
    assert (encoded(step), step.evictions) == ({"dog": 1}, ("cat",))
    world.run()


def test_the_more_urgent_need_takes_the_room_of_the_less_urgent_one() -> None:
    world = World(encoder_cache_embeds=6, idle_encoder_slices_per_step=2)
    world.submit(request("camera", 2, CAT, request_class=BACKGROUND))
    assert encoded(world.step()) == {"cat": 2}
    world.submit(request("chat", 2, DOG))
    step = world.step()
    assert (encoded(step), step.evictions) == ({"dog": 2}, ("cat",))
    world.run()
    assert world.answer("camera")[1] is FinishReason.LENGTH


def test_an_image_needed_later_takes_no_room_from_a_need_of_now() -> None:
    world = World(encoder_cache_embeds=12, idle_encoder_slices_per_step=4)
    world.submit(request("camera", 2, image("cat", num_slices=9), request_class=BACKGROUND))
    assert encoded(world.step()) == {"cat": 4}
    world.submit(request("chat", 2, DOG, image("cow")))
    step = world.step()
    assert (encoded(step), step.evictions) == ({"dog": 3, "cat": 1}, ())


def test_the_least_recently_used_image_goes_first() -> None:
    world = World(encoder_cache_embeds=12, enable_prefix_caching=False)
    for request_id, shown in (("a", CAT), ("b", DOG), ("c", CAT)):
        world.submit(request(request_id, 3, shown))
        world.run()
    world.submit(request("d", 3, image("cow")))
    assert world.step().evictions == ("dog",)


def test_a_cancelled_requests_half_encoded_image_is_dropped() -> None:
    world = World(idle_encoder_slices_per_step=1)
    world.submit(request("a", CAT), request("b", 3))
    assert encoded(world.step()) == {"cat": 1}
    world.cancel("a")
    assert world.step().evictions == ("cat",)
    assert world.scheduler.stats().encoder_embeds_used == 0


def test_a_cancelled_requests_image_goes_on_if_another_needs_it() -> None:
    world = World(idle_encoder_slices_per_step=1)
    world.submit(request("a", CAT), request("b", CAT))
    assert encoded(world.step()) == {"cat": 1}
    world.cancel("a")
    steps = world.run()
    assert not any(step.evictions for step in steps)
    assert world.runner.num_encodings == {"cat": 1}


def test_a_failed_image_ends_everybody_who_waits_for_it() -> None:
    world = World()
    world.submit(request("a", 3, CAT), request("b", CAT, 3), request("c", 3, DOG), request("d", 3))
    world.step(failed_images=["cat"])
    failed = {event.request_id: event.error for event in world.events if event.finish_reason is FinishReason.ERROR}
    assert failed == {"a": "encoder failed", "b": "encoder failed"}
    world.run()
    assert {name: world.answer(name)[1] for name in "cd"} == {"c": FinishReason.LENGTH, "d": FinishReason.LENGTH}


def test_a_failed_image_may_be_sent_again() -> None:
    world = World()
    world.submit(request("a", 3, CAT))
    world.step(failed_images=["cat"])
    world.submit(request("b", 4, CAT))
    world.run()
    assert world.answer("b")[1] is FinishReason.LENGTH


def test_a_full_budget_does_not_keep_images_from_being_encoded() -> None:
    world = World(max_num_batched_tokens=8)
    world.submit(request("report", 40))
    world.step()
    world.submit(request("camera", 3, CAT))
    step = world.step()
    assert (booked(step), encoded(step)) == ({"report": 8}, {"cat": 3})


def test_a_half_encoded_image_goes_though_nobody_comes_after_it() -> None:
    """It holds activations, which nobody would give back while the engine sleeps."""
    world = World(idle_encoder_slices_per_step=1)
    world.submit(request("a", 2, CAT))
    assert encoded(world.step()) == {"cat": 1}
    world.cancel("a")
    assert world.scheduler.has_work()
    step = world.step()
    assert (step.chunks, step.encodes, step.evictions) == ((), (), ("cat",))
    assert not world.scheduler.has_work()
    assert world.scheduler.schedule() is None


def test_the_same_after_a_failure() -> None:
    world = World(idle_encoder_slices_per_step=1)
    world.submit(request("a", 4, CAT, 2, DOG))
    while "dog" not in encoded(world.step(failed_requests=["a"] if world.scheduler._ledger.is_resident("cat") else ())):
        assert world.scheduler.has_work()
    assert [event.finish_reason for event in world.events] == [FinishReason.ERROR]
    assert [step.evictions for step in world.run()] == [("dog",)]

"""Which images go through the encoder together."""

from __future__ import annotations

from backend.types.request import ImageInput, Request
from backend.types.step import EncodeSlice, Step
from tests.unit.sched.builders import BACKGROUND, World, encoded, request


def frame(name: str, layout: tuple[int, ...] = (1,), num_slices: int = 3) -> ImageInput:
    return ImageInput(name, 6, num_slices, layout=layout)


def camera(name: str, layout: tuple[int, ...] = (1,), num_slices: int = 3) -> Request:
    return request(name, frame(f"{name}'s", layout, num_slices), request_class=BACKGROUND)


def batches(step: Step) -> list[str]:
    return ["+".join(picture.key for picture in encode.images) for encode in step.encodes]


def world(max_encoder_batch: int = 8, idle_encoder_slices_per_step: int = 1, **limits: int) -> World:
    limits |= {"max_encoder_batch": max_encoder_batch, "idle_encoder_slices_per_step": idle_encoder_slices_per_step}
    return World("stall-free", **limits)


def test_frames_that_wait_at_once_are_one_batch_and_stay_it() -> None:
    cameras = world()
    cameras.submit(*(camera(name) for name in "abcd"))
    assert [batches(cameras.step()) for _ in range(3)] == [["a's+b's+c's+d's"]] * 3
    assert [chunk.request_id for chunk in cameras.step().chunks] == ["a", "b", "c"], (
        "as many as the budget has room for"
    )


def test_a_batch_is_a_power_of_two_and_no_larger_than_allowed() -> None:
    cameras = world()
    cameras.submit(*(camera(name) for name in "abc"))
    assert batches(cameras.step()) == ["a's+b's"]
    cameras = world(max_encoder_batch=2)
    cameras.submit(*(camera(name) for name in "abcd"))
    assert batches(cameras.step()) == ["a's+b's"]
    cameras = world(max_encoder_batch=1)
    cameras.submit(*(camera(name) for name in "ab"))
    assert batches(cameras.step()) == ["a's"]


def test_those_that_come_later_begin_their_own() -> None:
    cameras = world()
    cameras.submit(camera("a"))
    assert batches(cameras.step()) == ["a's"]
    cameras.submit(camera("b"), camera("c"))
    assert [batches(cameras.step()) for _ in range(3)] == [["a's"], ["a's"], ["b's+c's"]]


def test_only_images_of_one_layout_and_requests_of_one_class_go_together() -> None:
    cameras = world(idle_encoder_slices_per_step=9, max_num_seqs=6)
    cameras.submit(
        request("chat", frame("chat's")),
        camera("a"),
        camera("wide", layout=(2,)),
        camera("alone", layout=()),
        camera("long", num_slices=4),
        camera("b"),
    )
    assert batches(cameras.step()) == ["chat's", "a's+b's", "wide's"]


def test_a_camera_that_leaves_does_not_stop_the_others() -> None:
    cameras = world()
    cameras.submit(*(camera(name) for name in "abcd"))
    cameras.step()
    cameras.cancel("a")
    cameras.cancel("c")
    step = cameras.step()
    assert (batches(step), step.evictions) == (["b's+d's"], ("a's", "c's"))
    cameras.run()
    assert all(reason is not None for _, reason in map(cameras.answer, "bd"))


def test_an_image_that_fails_leaves_its_batch() -> None:
    cameras = world()
    cameras.submit(*(camera(name) for name in "ab"))
    cameras.step(failed_images=["b's"])
    assert batches(cameras.step()) == ["a's"]
    assert [event.request_id for event in cameras.events] == ["b"]


def test_company_takes_nobodys_place_in_the_cache() -> None:
    """The first may push out what a less urgent request needs; those that come along may not."""
    cameras = world(encoder_cache_embeds=18, max_num_seqs=6)
    cameras.submit(*(camera(name) for name in "abcd"))
    assert batches(cameras.step()) == ["a's+b's+c's"], "there is room for three"
    cameras.run()


def test_a_step_does_not_evict_what_it_encodes() -> None:
    """The second one lacks room; the less urgent image that came along with the first is taken already."""
    cameras = world(encoder_cache_embeds=18, idle_encoder_slices_per_step=6, max_num_seqs=6)
    wide = request("b", ImageInput("b's", 9, 3, layout=(2,)), request_class=BACKGROUND)
    cameras.submit(camera("a"), wide, camera("m"))
    step = cameras.step()
    assert (batches(step), step.evictions) == (["a's+m's"], ())
    cameras.run()


def test_a_batch_is_not_made_where_it_was_seen_not_to_pay() -> None:
    cameras = world(idle_encoder_slices_per_step=6)
    costs = cameras.scheduler.policy.cost.slices
    for _ in range(4):
        costs.observe([EncodeSlice(frame("x"), 0, 3)], 0.003)
        costs.observe([EncodeSlice(frame("x"), 0, 3, (frame("y"),))], 0.0059)
    cameras.submit(*(camera(name) for name in "ab"))
    step = cameras.step()
    assert batches(step) == ["a's", "b's"]
    assert encoded(step) == {"a's": 3, "b's": 3}

from __future__ import annotations

import pytest

from backend.sched.policy import POLICIES
from backend.types.result import FinishReason
from tests.unit.sched.builders import BACKGROUND, World, booked, encoded, image, request


@pytest.mark.parametrize("policy", POLICIES)
def test_interactive_is_admitted_before_background(policy: str) -> None:
    world = World(policy, max_num_seqs=1)
    world.submit(request("camera", 3, request_class=BACKGROUND), request("chat", 3))
    served = [request_id for step in world.run() for request_id in booked(step)]
    assert served.index("chat") < served.index("camera")


def test_an_interactive_prompt_goes_before_a_background_one_that_has_begun() -> None:
    world = World(max_num_batched_tokens=8)
    world.submit(request("camera", 20, request_class=BACKGROUND))
    assert booked(world.step()) == {"camera": 8}
    world.submit(request("chat", 12))
    assert booked(world.step()) == {"chat": 8}
    assert booked(world.step()) == {"chat": 4, "camera": 4}


def test_a_background_decode_is_not_held_up() -> None:
    world = World(max_num_batched_tokens=8)
    world.submit(request("camera", 4, max_tokens=9, request_class=BACKGROUND))
    world.step()
    world.submit(request("chat", 30))
    assert booked(world.step()) == {"camera": 1, "chat": 7}


@pytest.mark.parametrize("policy", POLICIES)
def test_background_ages_and_is_served_under_an_endless_stream_of_chats(policy: str) -> None:
    world = World(policy, max_num_seqs=1, background_aging_steps=20)
    world.submit(request("camera", 3, image("cat"), request_class=BACKGROUND))
    num_steps = 0
    while world.answer("camera")[1] is None:
        world.submit(request(f"chat{num_steps}", 3))
        world.step()
        num_steps += 1
        assert num_steps < 40, "starved"
    assert num_steps > 20
    assert world.answer("camera")[1] is FinishReason.LENGTH


def test_a_running_background_prompt_ages_too() -> None:
    """It holds a place, but every token goes to chats: that is waiting as well."""
    world = World(max_num_batched_tokens=4, background_aging_steps=10)
    world.submit(request("camera", 24, max_tokens=1, request_class=BACKGROUND))
    for _ in range(5):
        assert booked(world.step()) == {"camera": 4}
    served: list[bool] = []
    while True not in served:
        world.submit(request(f"chat{len(served)}", 16, max_tokens=1))
        served.append("camera" in booked(world.step()))
    assert len(served) == 10


def test_being_encoded_is_being_served() -> None:
    """A background image of many slices does not age while it gets on."""
    world = World(background_aging_steps=10, idle_encoder_slices_per_step=1)
    world.submit(request("camera", image("cat", num_slices=30), request_class=BACKGROUND))
    for _ in range(15):
        assert encoded(world.step()) == {"cat": 1}
    world.submit(request("chat", image("dog")))
    assert encoded(world.step()) == {"dog": 1}


def test_background_gives_way_before_interactive_when_blocks_run_out() -> None:
    world = World(num_blocks=12)
    world.submit(request("camera", 9, max_tokens=20, request_class=BACKGROUND))
    world.step()
    world.submit(request("chat", 9, max_tokens=20))
    steps = world.run()
    restarted = {c.request_id for step in steps for c in step.chunks if c.sample_index > 0 and not c.is_decode}
    assert restarted == {"camera"}

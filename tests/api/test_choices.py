"""Several choices of one request and the queue's bound: all of them are let in, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.api.conftest import Scripted
from tests.api.scripted import scripted_limits

Start = Callable[..., Scripted]
HI: list[Any] = [{"role": "user", "content": "hi"}]
LIMITS = scripted_limits(max_num_seqs=1, max_num_waiting=4)


def test_a_queue_that_fills_meanwhile_ends_no_choice(scripted: Start) -> None:
    """The other choices come once the first has begun; by then others have taken every place."""
    rig = scripted("Hello there.", limits=LIMITS, step_s=0.01)
    client, engine = rig.live.openai(), rig.live.service.engine
    rig.runner.hold()
    said: list[Any] = []
    stream = threading.Thread(target=lambda: said.extend(ask(client, 3)))
    stream.start()
    # What is waiting is counted before a step, and this one is held.
    rig.live.wait_until(lambda: engine.stats().num_waiting == 1)
    others = [threading.Thread(target=lambda: list(ask(client, 1)), daemon=True) for _ in range(4)]
    for other in others:
        other.start()
    # The runner holds the engine's thread, so they wait in its inbox until the step has ended.
    rig.live.wait_until(lambda: len(engine._inbox) == 4)
    rig.runner.release()
    stream.join(20)
    texts = ["", "", ""]
    for chunk in said:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["Hello there."] * 3
    for other in others:
        other.join(20)


def ask(client: openai.OpenAI, num_choices: int) -> Any:
    return client.chat.completions.create(model="scripted", messages=HI, n=num_choices, stream=True)


def test_more_choices_than_the_queue_has_places_are_refused_before_any_runs(scripted: Start) -> None:
    rig = scripted("Hello there.", limits=LIMITS)
    client = rig.live.openai()
    with pytest.raises(openai.BadRequestError, match=r"5 choices.*max_num_waiting.*4 places") as refusal:
        client.chat.completions.create(model="scripted", messages=HI, n=5)
    assert refusal.value.param == "n"
    assert rig.runner.steps == []
    assert len(list(ask(client, 4))) > 4


def test_completions_are_let_in_together_or_not_at_all(scripted: Start) -> None:
    """Two prompts, two choices each, and three places left: none of them runs."""
    rig = scripted("Hello there.", limits=LIMITS, step_s=0.01)
    client, engine = rig.live.openai(), rig.live.service.engine
    rig.runner.hold()
    refused: list[openai.APIStatusError] = []

    def complete() -> None:
        try:
            client.completions.create(model="scripted", prompt=["a", "b"], n=2)
        except openai.APIStatusError as error:
            refused.append(error)

    running, waiting = (threading.Thread(target=lambda: list(ask(client, 1))) for _ in range(2))
    completing = threading.Thread(target=complete)
    running.start()
    rig.live.wait_until(lambda: engine.stats().num_waiting == 1)
    for place, thread in enumerate((waiting, completing), start=1):
        thread.start()
        rig.live.wait_until(lambda place=place: len(engine._inbox) == place)
    rig.runner.release()
    for thread in (completing, running, waiting):
        thread.join(20)
    assert [error.status_code for error in refused] == [429]
    assert not [c for step in rig.runner.steps for c in step.chunks if c.request_id.startswith("cmpl-")]
    reply = client.completions.create(model="scripted", prompt=["a", "b"], n=2)
    assert [choice.text for choice in reply.choices] == ["Hello there."] * 4

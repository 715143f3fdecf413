"""The page's view of the engine, against real servers that are ours, another's, away and back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from backend.startup import Phase, Progress
from tests.unit.ui.scripted_engine import ScriptedEngine, a_step
from ui.web.engine_link import MAX_STEPS, RATE_WINDOW_S, EngineLink, EngineState, Loading


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(steps=[a_step(0), a_step(1)]) as engine:
        yield engine


async def test_takes_in_each_step_once_and_the_settings(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    assert link.state is EngineState.STARTING
    await link.poll()
    engine.steps.append(a_step(2))
    await link.poll()
    await link.poll()
    assert [step["step_id"] for step in link.steps] == [0, 1, 2]
    assert link.state is EngineState.RUNNING
    assert link.settings is not None
    assert (link.settings.max_num_batched_tokens, link.settings.max_num_seqs, link.max_budget) == (64, 8, 512)
    await link.close()


async def test_keeps_a_bounded_number_of_steps(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    engine.steps = [a_step(n) for n in range(MAX_STEPS)]
    await link.poll()
    engine.steps = [a_step(n) for n in range(MAX_STEPS, MAX_STEPS + 200)]
    await link.poll()
    assert len(link.steps) == MAX_STEPS
    assert link.steps[-1]["step_id"] == MAX_STEPS + 199
    await link.close()


async def test_rates_count_what_came_since_and_ignore_history(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    await link.poll()
    assert link.rates().tokens_per_s == 0.0
    engine.steps += [a_step(2, decode_tokens=4, elapsed_ms=50.0), a_step(3, decode_tokens=0, elapsed_ms=900.0)]
    await link.poll()
    rates = link.rates()
    assert rates.tokens_per_s == pytest.approx(4 / RATE_WINDOW_S)
    assert (rates.itl_p50_ms, rates.itl_p99_ms) == (50.0, 50.0)  # a step that decodes nothing has no such latency
    await link.close()


async def test_rates_forget_what_is_older_than_their_window(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = EngineLink(engine.url)
    await link.poll()
    engine.steps.append(a_step(2, elapsed_ms=900.0))
    await link.poll()
    assert link.rates().itl_p99_ms == 900.0
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + RATE_WINDOW_S)
    assert (link.rates().tokens_per_s, link.rates().itl_p99_ms) == (0.0, None)
    await link.close()


async def test_an_engine_that_loads_says_what_it_is_at_until_it_runs(engine: ScriptedEngine) -> None:
    engine.loading = Progress(Phase.KERNELS, "Kernels are compiled once …", 7.5, 10.5)
    link = EngineLink(engine.url, is_own=True)
    await link.poll()
    assert link.state is EngineState.STARTING
    assert link.loading == Loading("preparing compiled kernels", "Kernels are compiled once …", 7.5, 10.5)
    engine.loading = None
    await link.poll()
    assert (link.state, link.loading) == (EngineState.RUNNING, None)
    engine.loading = Progress(Phase.LIBRARIES, "", 0.5, 0.5)  # it was started again
    await link.poll()
    assert (link.state, list(link.steps)) == (EngineState.STARTING, [])
    await link.close()


async def test_an_engine_that_dies_while_loading_is_down() -> None:
    async with ScriptedEngine(loading=Progress(Phase.WEIGHTS, "", 1.0, 2.0)) as engine:
        link = EngineLink(engine.url, is_own=True)
        await link.poll()
        assert link.state is EngineState.STARTING
    await link.poll()
    assert (link.state, link.loading) == (EngineState.DOWN, None)
    await link.close()


async def test_an_engine_that_comes_back_counts_from_the_start() -> None:
    engine = ScriptedEngine(steps=[a_step(n) for n in range(5)])
    async with engine:
        link = EngineLink(engine.url)
        await link.poll()
        before = link.generation
    await link.poll()
    assert link.state is EngineState.DOWN
    assert not link.steps
    engine.steps = [a_step(0)]
    async with engine:
        await link.poll()
    assert link.state is EngineState.RUNNING
    assert [step["step_id"] for step in link.steps] == [0]
    assert link.generation > before
    await link.close()


async def test_before_its_first_answer_a_backend_is_starting_not_down() -> None:
    link = EngineLink("http://127.0.0.1:9/v1")
    await link.poll()
    assert link.state is EngineState.STARTING
    await link.close()


async def test_another_server_is_recognised() -> None:
    async with ScriptedEngine(is_ours=False) as other:
        link = EngineLink(other.url)
        await link.poll()
        assert link.state is EngineState.OTHER
        assert link.settings is None
    await link.close()


async def test_a_change_reaches_the_engine_and_a_refusal_is_its_own_words(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    await link.poll()
    assert await link.change({"max_num_batched_tokens": 16}) is None
    assert engine.budget == 16
    assert link.settings is not None
    assert link.settings.max_num_batched_tokens == 16
    assert await link.change({"max_num_batched_tokens": 3}) == "less than --max-num-seqs 8"
    assert engine.budget == 16
    assert await link.change({"step_policy": "latency-target", "target_itl_ms": 80.0}) is None
    assert (link.settings.step_policy, link.settings.step_policies) == (
        "latency-target",
        ("stall-free", "latency-target"),
    )
    assert link.settings.target_itl_ms == 80.0
    await link.close()


async def test_a_change_is_marked_after_the_last_step_made_as_before(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    await link.poll()
    engine.steps.append(a_step(2))  # made since the last look, still under the old budget
    await link.change({"max_num_batched_tokens": 16})
    engine.steps.append(a_step(3))
    await link.poll()
    assert [step["step_id"] for step in link.steps] == [0, 1, 2, 3]
    assert shown(link) == [(2, "max_num_batched_tokens", 64, 16)]
    await link.change({"step_policy": "latency-target", "target_itl_ms": 80.0})
    assert shown(link)[1:] == [(3, "step_policy", "stall-free", "latency-target"), (3, "target_itl_ms", None, 80.0)]
    await link.close()


async def test_a_slider_on_its_way_is_one_change_and_none_if_it_comes_back(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    await link.poll()
    for budget in (60, 40, 20):
        await link.change({"max_num_batched_tokens": budget})
    assert shown(link) == [(1, "max_num_batched_tokens", 64, 20)]
    await link.change({"max_num_batched_tokens": 64})
    assert shown(link) == []
    await link.close()


async def test_somebody_else_s_change_is_marked_too(engine: ScriptedEngine) -> None:
    link = EngineLink(engine.url)
    await link.poll()
    engine.budget = 32
    await link.poll()
    assert shown(link) == [(1, "max_num_batched_tokens", 64, 32)]
    await link.close()


def shown(link: EngineLink) -> list[tuple[int, str, str | float | None, str | float | None]]:
    return [(mark.step_id, mark.setting, mark.before, mark.after) for mark in link.marks]

"""The engine thread: every waiter is answered exactly once, whatever happens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from backend.bell import Bell, bell_of
from backend.engine import Engine, EngineState
from backend.errors import Cancelled, ConfigError, EngineDead, EngineError, Overloaded, Rejected
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.stream import TokenStream
from backend.types.request import Request, RequestClass, SamplingParams
from backend.types.result import FinishReason, StepResult, TokenEvent
from backend.types.scheduler import SchedulerLimits
from backend.types.step import Step
from tests.api.scripted import EOS, Landed, ScriptedAdapter, ScriptedRunner, scripted_limits

ADAPTER = ScriptedAdapter()


class Rig:
    """A started engine over a scripted runner."""

    def __init__(
        self,
        reply: str = "abc",
        *,
        limits: SchedulerLimits | None = None,
        step_s: float = 0.0,
        async_scheduling: bool = False,
    ) -> None:
        limits = limits or scripted_limits()
        self.runner = ScriptedRunner(ADAPTER, reply, step_s=step_s)
        self.scheduler = Scheduler(limits, make_policy("stall-free"))
        self.num_dead_calls = 0
        self.engine = Engine(self.scheduler, self.runner, limits, async_scheduling=async_scheduling, on_dead=self._died)

    def _died(self) -> None:
        self.num_dead_calls += 1


class Rigs(list[Rig]):
    """Rigs of a test; all of them make steps ahead, or none does."""

    async_scheduling = False


@pytest.fixture(params=[False, True], ids=["one step in flight", "two"])
def rigs(request: pytest.FixtureRequest) -> Iterator[Rigs]:
    """Rigs put here are stopped at the end, and none may have left its thread behind."""
    made = Rigs()
    made.async_scheduling = request.param
    others = set(threading.enumerate())
    yield made
    for rig in made:
        rig.runner.release()
        rig.engine.stop()
    assert not [t for t in threading.enumerate() if t.name == "engine" and t not in others]


def request(request_id: str, prompt: str = "hi", *, max_tokens: int = 20, ignore_eos: bool = False) -> Request:
    stops = frozenset() if ignore_eos else frozenset({ADAPTER.id_of(EOS)})
    sampling = SamplingParams(max_tokens, stop_token_ids=stops, ignore_eos=ignore_eos)
    return Request(request_id, ADAPTER.prepare([{"role": "user", "content": prompt}], ()), sampling)


async def read(stream: TokenStream) -> tuple[str, list[TokenEvent]]:
    """The text and the ends of a stream, read as far as it goes plus a moment."""
    events: list[TokenEvent] = []
    while not any(e.finish_reason for e in events):
        events += await asyncio.wait_for(stream.take(), 10)
    await asyncio.sleep(0.01)
    text = ADAPTER.core.decode([e.token_id for e in events if e.token_id is not None])
    return text, [e for e in events if e.finish_reason]


def start(rigs: Rigs, **options: object) -> Rig:
    rig = Rig(**options, async_scheduling=rigs.async_scheduling)  # type: ignore[arg-type]
    rigs.append(rig)
    rig.engine.start()
    return rig


async def wait_for_step(rig: Rig, count: int = 1) -> None:
    for _ in range(2000):
        if len(rig.runner.steps) >= count:
            return
        await asyncio.sleep(0.002)
    raise AssertionError("no step came")


async def test_tokens_come_in_order_and_end_once(rigs: Rigs) -> None:
    rig = start(rigs)
    streams = [rig.engine.submit(request(f"r{i}")) for i in range(5)]
    for text, ends in await asyncio.gather(*(read(s) for s in streams)):
        assert text == "abc"
        assert [e.finish_reason for e in ends] == [FinishReason.STOP]
    rig.scheduler.check()
    assert rig.engine.stats().num_blocks_used == 0


async def test_a_refusal_comes_through_the_stream_and_the_engine_lives_on(rigs: Rigs) -> None:
    rig = start(rigs)
    stream = rig.engine.submit(request("long", "x" * 400))
    with pytest.raises(Rejected):
        await asyncio.wait_for(stream.admitted(), 10)
    text, _ = await read(rig.engine.submit(request("next")))
    assert text == "abc"


async def test_a_full_queue_is_overload(rigs: Rigs) -> None:
    rig = start(rigs, limits=scripted_limits(max_num_seqs=1, max_num_waiting=1))
    rig.runner.hold()
    streams = [rig.engine.submit(request("running"))]
    await streams[0].admitted()
    streams.append(rig.engine.submit(request("waiting")))
    streams.append(rig.engine.submit(request("refused")))
    rig.runner.release()
    await streams[1].admitted()
    with pytest.raises(Overloaded):
        await streams[2].admitted()
    for stream in streams[:2]:
        assert (await read(stream))[0] == "abc"


async def test_an_exception_in_a_step_answers_everyone_once_and_kills_the_engine(rigs: Rigs) -> None:
    rig = start(rigs, limits=scripted_limits(max_num_seqs=1))
    rig.runner.hold()
    running = rig.engine.submit(request("running"))
    await running.admitted()
    waiting = rig.engine.submit(request("waiting"))
    rig.runner.fail_with = RuntimeError("out of luck")
    in_inbox = rig.engine.submit(request("in the inbox"))
    rig.runner.release()
    for stream in (running, waiting, in_inbox):
        with pytest.raises(EngineDead, match="RuntimeError"):
            await asyncio.wait_for(stream.take(), 10)
    rig.engine.stop()
    assert rig.engine.state is EngineState.DEAD
    assert rig.num_dead_calls == 1
    assert rig.runner.num_closed == 1
    with pytest.raises(EngineDead):
        rig.engine.submit(request("late"))
    with pytest.raises(EngineDead):
        rig.engine.set_token_budget(32)


async def test_even_an_exit_in_a_step_answers_everyone(rigs: Rigs) -> None:
    rig = start(rigs)
    rig.runner.fail_with = SystemExit(3)
    with pytest.raises(EngineDead):
        await asyncio.wait_for(rig.engine.submit(request("r")).take(), 10)


async def test_a_failed_request_ends_alone(rigs: Rigs) -> None:
    rig = start(rigs)
    rig.runner.fail_requests = "its logits are not numbers"
    _, (end,) = await read(rig.engine.submit(request("bad")))
    assert (end.finish_reason, end.error) == (FinishReason.ERROR, "its logits are not numbers")
    rig.runner.fail_requests = None
    assert (await read(rig.engine.submit(request("good"))))[0] == "abc"


async def test_cancel_is_honoured_before_the_next_step(rigs: Rigs) -> None:
    rig = start(rigs)
    rig.runner.hold()
    stream = rig.engine.submit(request("gone", ignore_eos=True, max_tokens=200))
    await stream.admitted()
    rig.engine.cancel("gone")
    rig.runner.release()
    _, (end,) = await read(stream)
    assert end.finish_reason is FinishReason.CANCELLED
    assert rig.engine.stats().num_blocks_used == 0
    assert len(rig.runner.steps) == 1
    rig.engine.cancel("gone")
    rig.engine.cancel("never known")
    assert (await read(rig.engine.submit(request("after"))))[0] == "abc"


async def test_a_drain_lets_running_answers_end_and_takes_no_more(rigs: Rigs) -> None:
    rig = start(rigs, step_s=0.005)
    stream = rig.engine.submit(request("r"))
    await stream.admitted()
    draining = asyncio.create_task(asyncio.to_thread(rig.engine.drain, 5.0))
    await asyncio.sleep(0.005)
    with pytest.raises(EngineDead, match="shutting down"):
        rig.engine.submit(request("late"))
    assert (await read(stream))[0] == "abc"
    await draining
    assert rig.engine.state is EngineState.STOPPED
    assert rig.runner.num_closed == 1


async def test_a_drain_cancels_what_does_not_end_in_time(rigs: Rigs) -> None:
    rig = start(rigs, step_s=0.005, reply="a" * 300)
    stream = rig.engine.submit(request("r", max_tokens=200, ignore_eos=True))
    await wait_for_step(rig)
    await asyncio.to_thread(rig.engine.drain, 0.05)
    with pytest.raises(Cancelled):
        await read(stream)
    assert rig.engine.state is EngineState.STOPPED


async def test_a_step_that_hangs_does_not_hold_its_waiters(rigs: Rigs) -> None:
    rig = start(rigs)
    rig.runner.hold()
    stream = rig.engine.submit(request("r"))
    await stream.admitted()
    t_begin = time.monotonic()
    await asyncio.to_thread(rig.engine.drain, 0.0)
    assert time.monotonic() - t_begin < 3
    with pytest.raises(Cancelled):
        await stream.take()


async def test_an_engine_that_never_started_answers_too() -> None:
    rig = Rig()
    stream = rig.engine.submit(request("r"))
    rig.engine.stop()
    with pytest.raises(Cancelled):
        await stream.admitted()
    assert rig.runner.num_closed == 1


async def test_the_token_budget_changes_while_running(rigs: Rigs) -> None:
    rig = start(rigs)
    rig.engine.set_token_budget(16)
    await read(rig.engine.submit(request("r", "x" * 60)))
    assert max(step.num_prefill_tokens for step in rig.runner.steps) == 16
    for wrong in (7, 257):
        with pytest.raises(ConfigError, match=str(wrong)):
            rig.engine.set_token_budget(wrong)
    assert rig.engine.token_budget == 16


async def test_an_idle_engine_sleeps(rigs: Rigs) -> None:
    rig = start(rigs)
    await read(rig.engine.submit(request("r")))
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.2, "the engine thread spins"
    assert rig.engine.state is EngineState.RUNNING


async def test_one_wake_up_per_step_however_many_streams(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = start(rigs, reply="abcdefgh")
    rig.runner.hold()
    streams = [rig.engine.submit(request(f"r{i}")) for i in range(6)]
    await asyncio.gather(*(s.admitted() for s in streams))
    rings = []
    original = Bell.ring
    monkeypatch.setattr(Bell, "ring", lambda bell: (rings.append(bell), original(bell))[1])
    rig.runner.release()
    for stream in streams:
        assert (await read(stream))[0] == "abcdefgh"
    assert len(rings) <= len(rig.runner.steps)
    assert set(rings) == {bell_of(asyncio.get_running_loop())}


async def test_a_slow_reader_holds_nobody_and_misses_nothing(rigs: Rigs) -> None:
    rig = start(rigs)
    slow = rig.engine.submit(request("slow", max_tokens=100, ignore_eos=True))
    assert (await read(rig.engine.submit(request("quick"))))[0] == "abc"
    await wait_for_step(rig, 100)
    await asyncio.sleep(0.05)
    events = await slow.take()
    assert len(events) == 100
    assert events[-1].finish_reason is FinishReason.LENGTH


async def test_an_id_in_use_is_a_programming_error(rigs: Rigs) -> None:
    rig = start(rigs)
    rig.runner.hold()
    rig.engine.submit(request("twice"))
    with pytest.raises(ValueError, match="twice"):
        rig.engine.submit(request("twice"))


async def test_metrics_and_steps_tell_what_happened(rigs: Rigs) -> None:
    rig = start(rigs)
    await read(rig.engine.submit(request("r", "x" * 100)))
    rig.engine.stop()
    steps = rig.engine.metrics.steps.since(None, 100)
    assert [s.step_id for s in steps] == list(range(len(steps)))
    assert sum(s.prefill_tokens for s in steps) == 101
    assert rig.engine.metrics.steps.since(steps[1].step_id, 2) == steps[2:4]
    text = rig.engine.metrics.render().decode()
    assert "watchword_generation_tokens_total 3.0" in text
    assert "watchword_prompt_tokens_total 101.0" in text
    assert 'watchword_request_success_total{finished_reason="stop"} 1.0' in text
    assert 'watchword_time_to_first_token_seconds_count{request_class="interactive"} 1.0' in text
    assert 'watchword_inter_token_latency_seconds_count{request_class="interactive"} 2.0' in text
    assert RequestClass.BACKGROUND.value not in text


async def test_work_that_cannot_be_scheduled_is_an_error_not_a_spin(rigs: Rigs) -> None:
    class Stuck(Scheduler):
        def schedule(self) -> None:
            return None

    rig = Rig()
    rigs.append(rig)
    limits = scripted_limits()
    rig.engine = Engine(Stuck(limits, make_policy("stall-free")), rig.runner, limits)
    rig.engine.start()
    with pytest.raises(EngineError):
        await asyncio.wait_for(rig.engine.submit(request("r")).take(), 10)


class LoggedRunner(ScriptedRunner):
    """Says in `log` what was launched and what has landed."""

    def __init__(self, reply: str) -> None:
        super().__init__(ADAPTER, reply)
        self.log: list[str] = []

    def launch(self, step: Step) -> Landed:
        self.log.append(f"launch {step.step_id}")
        runner, landed = self, super().launch(step)

        class Logged(Landed):
            def land(self) -> StepResult:
                runner.log.append(f"land {step.step_id}")
                time.sleep(0.01)
                return super().land()

        return Logged(landed.result)


def logged(rigs: Rigs, reply: str) -> tuple[Rig, LoggedRunner]:
    rig, runner = Rig(), LoggedRunner(reply)
    rig.runner = runner
    rig.engine = Engine(rig.scheduler, runner, scripted_limits(), async_scheduling=rigs.async_scheduling)
    rigs.append(rig)
    rig.engine.start()
    return rig, runner


async def test_the_next_step_is_launched_before_the_one_in_flight_lands(rigs: Rigs) -> None:
    rig, runner = logged(rigs, "abc")
    text, _ = await read(rig.engine.submit(request("r", max_tokens=3, ignore_eos=True)))
    assert text == "abc"
    one, two = "launch 0, land 0, launch 1, land 1", "launch 0, launch 1, land 0, launch 2, land 1"
    assert ", ".join(runner.log).startswith(two if rigs.async_scheduling else one)
    # The answer's length is known: nothing is launched beyond it.
    assert sorted(runner.log) == [f"{what} {i}" for what in ("land", "launch") for i in range(3)]
    # A step's time is its own, however long before the end of another it was launched.
    elapsed_ms = [record.elapsed_ms for record in rig.engine.metrics.steps.since(None, 9)]
    assert sum(elapsed_ms) < 3 * 10 + 15


async def test_a_step_launched_beyond_the_end_tells_nothing(rigs: Rigs) -> None:
    rig, runner = logged(rigs, "ab")
    text, ends = await read(rig.engine.submit(request("r")))
    assert (text, [e.finish_reason for e in ends]) == ("ab", [FinishReason.STOP])
    text, _ = await read(rig.engine.submit(request("next")))
    assert text == "ab"
    assert len(runner.steps) == 6 + 2 * rigs.async_scheduling
    rig.scheduler.check()


async def test_nothing_is_made_ahead_of_a_step_that_failed(rigs: Rigs) -> None:
    rig, runner = logged(rigs, "abc")
    runner.fail_requests = "no"
    _, ends = await read(rig.engine.submit(request("r")))
    assert [(e.finish_reason, e.error) for e in ends] == [(FinishReason.ERROR, "no")]
    assert runner.log == ["launch 0", "land 0"]

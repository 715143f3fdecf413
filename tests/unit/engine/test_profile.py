"""The profile at the start: real scheduler and engine parts, a scripted model on a machine of known costs."""

from __future__ import annotations

import time

import pytest

from backend.config import EngineConfig
from backend.errors import ConfigError
from backend.first_steps import say_profile, settle_target
from backend.profile import Profile
from backend.sched.cost import CostModel
from backend.sched.policy import StallFree
from backend.sched.scheduler import Scheduler
from backend.types.request import Prepared, Request, SamplingParams
from backend.types.result import StepResult
from backend.types.scheduler import SchedulerLimits
from backend.types.step import Step
from tests.api.scripted import ScriptedAdapter, ScriptedRunner, scripted_limits
from tests.fuzz.machine import Machine

ADAPTER = ScriptedAdapter(max_model_len=1024)
MACHINE = Machine(base_s=0.002, sequence_s=0.0004, token_s=0.00005, kv_token_s=0.0, slice_s=(0.004, 0.002))


class MachineRunner(ScriptedRunner):
    """Takes as long for a step as the machine says."""

    def execute(self, step: Step) -> StepResult:
        time.sleep(MACHINE.exact_s(step))
        return super().execute(step)


def profiled(limits: SchedulerLimits) -> tuple[CostModel, Scheduler, list[Step], list[str]]:
    scheduler, runner, said = Scheduler(limits, StallFree()), MachineRunner(ADAPTER), []
    cost = Profile(ADAPTER, scheduler, runner, limits).run(said.append)
    return cost, scheduler, runner.steps, said


def test_it_learns_every_part_and_leaves_the_scheduler_idle_and_as_it_was() -> None:
    limits = scripted_limits(max_model_len=1024, hard_num_batched_tokens=512)
    cost, scheduler, steps, said = profiled(limits)
    assert not scheduler.has_work()
    scheduler.check()
    assert scheduler.stats().num_blocks_used == 0
    assert {step.num_decode_tokens for step in steps} >= {1, 2, 4, 8}
    assert {16, 48, 128, 320} <= {step.num_prefill_tokens for step in steps}
    assert all(step.num_encoder_slices <= 1 for step in steps), "slices are timed one by one"
    assert "Profile: picture 2 of 2 …" in said
    # Sleeping is never exact, and a shared machine may be slow: the order of magnitude is what counts here.
    for step in steps[-20:]:
        assert 0.5 < cost.predict_s(step) / MACHINE.exact_s(step) < 3.0
    assert cost.max_tokens == 320


def test_the_parts_without_pictures_are_enough_for_a_budget_by_time() -> None:
    limits = scripted_limits(max_model_len=1024, hard_num_batched_tokens=512, is_token_budget_exact=False)
    scheduler, runner = Scheduler(limits, StallFree()), MachineRunner(ADAPTER)
    cost = Profile(ADAPTER, scheduler, runner, limits).run_text()
    assert not scheduler.has_work()
    assert not any(step.encodes for step in runner.steps)
    assert 0.5 < cost.coefficients.token_s / MACHINE.token_s < 10.0
    scheduler.submit(Request("r", Prepared((1,), (), (), (range(1),)), SamplingParams(2)))
    step = scheduler.schedule()
    assert step is not None
    assert (scheduler.stats().step_token_budget, step.num_prefill_tokens) == (64, 1), "its own budget is back"


def test_a_tight_server_is_profiled_as_far_as_it_goes() -> None:
    limits = scripted_limits(max_num_seqs=1, max_model_len=40, hard_num_batched_tokens=64, num_blocks=3)
    cost, scheduler, steps, said = profiled(limits)
    assert not scheduler.has_work()
    assert cost.num_observed > 0
    assert max(step.num_prefill_tokens for step in steps) == 16
    assert not any("picture" in line for line in said)


def test_the_default_target_is_twice_the_measured_decode_step_and_a_shorter_one_is_refused() -> None:
    limits = scripted_limits(max_model_len=1024, hard_num_batched_tokens=512)
    cost = profiled(limits)[0]
    bare_ms = cost.coefficients.bare_decode_s * 1e3
    config, said = EngineConfig(step_policy="latency-target"), []
    assert settle_target(config, cost, said.append).target_itl_ms == round(2 * bare_ms, 1)
    assert f"Latency target: {round(2 * bare_ms, 1):g} ms" in said[-1]
    with pytest.raises(ConfigError, match=rf"--target-itl-ms 1 cannot be met: .* {bare_ms:.1f} ms"):
        settle_target(EngineConfig(step_policy="latency-target", target_itl_ms=1.0), cost, said.append)


def test_a_disturbed_start_says_so_and_sets_no_target_for_good() -> None:
    limits = scripted_limits(max_model_len=1024, hard_num_batched_tokens=512)
    cost, said = profiled(limits)[0], []
    assert say_profile(cost, 0.1, said.append) == ""
    assert said.pop() == f"Profile: {cost.coefficients}"
    beside = say_profile(cost, 0.48, said.append)
    assert said.pop().endswith("%; other programs had 48% of the processors, so serving corrects it")
    config = EngineConfig(step_policy="latency-target")
    assert settle_target(config, cost, said.append, beside).target_itl_ms is None
    bare_ms = cost.coefficients.bare_decode_s * 1e3
    assert said.pop() == f"Latency target: twice a bare decode step, as steps turn out; now {2 * bare_ms:.1f} ms"
    given = EngineConfig(step_policy="latency-target", target_itl_ms=bare_ms + 1)
    assert settle_target(given, cost, said.append, beside).target_itl_ms == given.target_itl_ms
    with pytest.raises(
        ConfigError, match=r"ms on this machine \(other programs had 48% .*; start it in a quieter moment"
    ):
        settle_target(EngineConfig(step_policy="latency-target", target_itl_ms=1.0), cost, said.append, beside)

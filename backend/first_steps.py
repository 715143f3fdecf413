"""What a server does before anybody waits for it: a first request, and where a policy needs it, a profile.

Knows nothing of engines, HTTP or how models are loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from backend.config import EngineConfig
from backend.errors import ConfigError, EngineError, ModelLoadError
from backend.profile import Profile
from backend.readings import DISTURBED, OtherWork
from backend.sched.cost import CostModel
from backend.sched.latency_target import DEFAULT_STRETCH, LatencyTarget
from backend.sched.scheduler import Scheduler
from backend.startup import Enter, Phase, Say
from backend.step_runner import StepRunner
from backend.types.request import Request, SamplingParams
from backend.types.result import FinishReason
from backend.types.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter


def take_first_steps(
    config: EngineConfig,
    limits: SchedulerLimits,
    adapter: ModelAdapter,
    scheduler: Scheduler,
    runner: StepRunner,
    say: Say,
    enter: Enter,
) -> EngineConfig:
    """Run what makes everything ready, and what the policy must know before anybody waits; its latency target settled.

    Whatever goes wrong here is the model's fault, and makes a start impossible.
    """
    cost = scheduler.policy.cost
    try:
        _warm_up(adapter, scheduler, runner)
        if config.step_policy == LatencyTarget.name:
            enter(Phase.PROFILE)
            others = OtherWork()
            Profile(adapter, scheduler, runner, limits).run(say)
            return settle_target(config, cost, say, say_profile(cost, others.share(), say))
        if not limits.is_token_budget_exact:
            enter(Phase.PROFILE)
            others = OtherWork()
            Profile(adapter, scheduler, runner, limits).run_text()
            say_profile(cost, others.share(), say)
    except EngineError:
        raise
    except Exception as error:
        raise ModelLoadError(f"the model fails on its first request: {type(error).__name__}: {error}") from error
    return config


def settle_target(config: EngineConfig, cost: CostModel, say: Say, beside: str = "") -> EngineConfig:
    """`config` with a latency target that this machine can meet: the given one, or twice the bare decode step measured.

    `beside` says in words what disturbed the measuring, if anything did. Then a target that nobody gave is left open:
    the policy follows the steps it sees, so that a busy start does not set a slow machine's target for good.

    Raises ConfigError, naming the step that was measured, for a given one that it cannot.
    """
    bare_ms, target_ms = cost.coefficients.bare_decode_s * 1e3, config.target_itl_ms
    if target_ms is None and beside:
        say(f"Latency target: twice a bare decode step, as steps turn out; now {DEFAULT_STRETCH * bare_ms:.1f} ms")
        return config
    if target_ms is None:
        target_ms = max(0.1, round(DEFAULT_STRETCH * bare_ms, 1))
    elif target_ms <= bare_ms:
        remedy = f" ({beside}); start it in a quieter moment, or raise it" if beside else "; raise it above that"
        raise ConfigError(
            f"--target-itl-ms {target_ms:g} cannot be met: a bare decode step takes {bare_ms:.1f} ms on this machine"
            + remedy
        )
    say(f"Latency target: {target_ms:g} ms a step; a bare decode step takes {bare_ms:.1f} ms")
    return replace(config, target_itl_ms=target_ms)


def say_profile(cost: CostModel, share: float, say: Say) -> str:
    """Say what steps cost; returns in words what disturbed the measuring: others' `share` of the processors."""
    beside = f"other programs had {share:.0%} of the processors" if share >= DISTURBED else ""
    say(f"Profile: {cost.coefficients}" + (f"; {beside}, so serving corrects it" if beside else ""))
    return beside


def _warm_up(adapter: ModelAdapter, scheduler: Scheduler, runner: StepRunner) -> None:
    """Run one small request, an image in it where the model takes them, so that the first user does not pay for it."""
    from PIL import Image

    parts = [{"type": "text", "text": "Hello"}]
    images = []
    if adapter.spec.takes_images:
        parts.insert(0, {"type": "image"})
        images.append(Image.new("RGB", (64, 64), "grey"))
    prompt = adapter.prepare([{"role": "user", "content": parts}], images)
    scheduler.submit(Request("warm-up", prompt, SamplingParams(max_tokens=2, temperature=0.0)))
    while (step := scheduler.schedule()) is not None:
        for event in scheduler.apply(runner.execute(step)):
            if event.finish_reason is FinishReason.ERROR:
                raise ModelLoadError(
                    f"the model cannot be used: its first answer failed ({event.error}); check its weights, and --dtype"
                )

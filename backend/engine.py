"""The engine thread: its inbox, then the loop over steps, until it is told to stop or breaks.

Owns the scheduler and the runner, which only its thread touches. Every exit path answers every waiter exactly once.
Knows nothing of text, HTTP or tensors.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Literal

from backend.errors import Cancelled, EngineDead, EngineError, Stopping
from backend.metrics import EngineMetrics
from backend.sched.latency_target import LatencyTarget
from backend.sched.limits import check_token_budget
from backend.sched.policy import Policy, make_policy
from backend.sched.scheduler import Scheduler
from backend.step_loop import StepLoop
from backend.step_runner import StepRunner
from backend.stream import TokenStream
from backend.types.request import Request
from backend.types.scheduler import SchedulerLimits, SchedulerStats
from backend.waiters import Waiters

log = logging.getLogger("watchword.engine")

_LAST_STEP_S = 1.0
"""How long a drain waits for the step that is running when its time is up."""


class EngineState(StrEnum):
    """Where the engine is in its life. It only moves forward: RUNNING > DRAINING > STOPPED, or to DEAD from either."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class Engine:
    """Runs requests on a thread of its own.

    `submit`, `cancel`, `set_token_budget`, `change` and the readings may be called from any thread and never wait for a
    step; `drain` and `stop` block. `on_dead` is called once, on the engine thread, after every waiter was answered.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        limits: SchedulerLimits,
        *,
        async_scheduling: bool = False,
        metrics: EngineMetrics | None = None,
        on_dead: Callable[[], None] | None = None,
    ) -> None:
        self.limits = limits
        self.metrics = metrics or EngineMetrics()
        self.on_dead = on_dead
        self._scheduler = scheduler
        self._policy = scheduler.policy
        self._runner = runner
        self._waiters = Waiters(self.metrics)
        self._loop = StepLoop(scheduler, runner, self._waiters, self.metrics, async_scheduling=async_scheduling)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # Guards the state and the inbox; held for bookkeeping only, never during a step.
        self._changed = threading.Condition()
        self._state = EngineState.RUNNING
        self._inbox: deque[Callable[[], None]] = deque()
        self._drain_until = 0.0
        self._token_budget = limits.max_num_batched_tokens
        self._is_budget_exact = limits.is_token_budget_exact
        self.metrics.observe_token_budget(self._token_budget)

    @property
    def state(self) -> EngineState:
        """The state at this moment."""
        return self._state

    @property
    def token_budget(self) -> int:
        """The token budget that the next step will have, at most."""
        return self._token_budget

    @property
    def is_budget_exact(self) -> bool:
        """Whether somebody chose that budget, so that no policy goes below it by time."""
        return self._is_budget_exact

    @property
    def step_policy(self) -> str:
        """The name of the policy that the next step will be made by."""
        return self._policy.name

    @property
    def target_s(self) -> float | None:
        """The latency target in seconds; None under a policy without one, and until a default one is measured."""
        return self._policy.target_s or None if isinstance(self._policy, LatencyTarget) else None

    def stats(self) -> SchedulerStats:
        """The scheduler's numbers after the latest step or command."""
        return self._loop.stats

    def start(self) -> None:
        """Start the thread; requests submitted earlier wait for it."""
        self._thread.start()

    def submit(self, request: Request) -> TokenStream:
        """Queue a request and return its stream, read on the calling event loop.

        A refusal by the scheduler comes through the stream. Raises EngineDead when nothing is taken any more.
        """
        with self._changed:
            self._refuse_unless_running()
            stream = self._waiters.add(request)
            self._post(partial(self._admit, request))
        return stream

    def cancel(self, request_id: str) -> None:
        """End a request before the next step; its waiter gets a CANCELLED end. Unknown or ended ids are ignored."""
        with self._changed:
            self._post(partial(self._cancel, request_id))

    def set_token_budget(self, num_tokens: int) -> None:
        """Change the token budget from the next step on; raises ConfigError, naming the limit, when out of bounds."""
        self.change(token_budget=num_tokens)

    def change(
        self,
        *,
        token_budget: int | Literal["auto"] | None = None,
        step_policy: str | None = None,
        target_s: float | None = None,
    ) -> None:
        """Change all of these from the next step on, or none: what is None stays.

        A token budget in numbers is exact; `auto` is the start's own, as a bound above what the policy finds by time.

        A latency target goes to the policy named, else to the running one; what was learned of the machine is handed
        on. Raises ConfigError for a budget out of bounds, an unknown policy, and a target that the policy does not take
        or this machine cannot meet.
        """
        if token_budget is not None and token_budget != "auto":
            check_token_budget(token_budget, self.limits)
        policy = None
        if step_policy is not None or target_s is not None:
            policy = make_policy(step_policy or self._policy.name, self._policy.cost, target_s)
        with self._changed:
            self._refuse_unless_running()
            if token_budget is not None:
                exact = None if token_budget == "auto" else token_budget
                self._is_budget_exact = exact is not None
                self._token_budget = exact or self.limits.max_num_batched_tokens
                self._post(partial(self._scheduler.set_token_budget, exact))
            if policy is not None:
                self._policy = policy
                self._post(partial(self._follow, policy))
        self.metrics.observe_token_budget(self._token_budget)

    def drain(self, timeout_s: float) -> None:
        """Take no new request, let the others end for up to `timeout_s`, cancel the rest, and stop the thread.

        A second call may shorten the wait of a first one.
        """
        with self._changed:
            if self._state is EngineState.RUNNING:
                self._state, self._drain_until = EngineState.DRAINING, math.inf
            if self._state is EngineState.DRAINING:
                self._drain_until = min(self._drain_until, time.monotonic() + timeout_s)
                self._changed.notify()
            started = self._thread.ident is not None
        if started:
            self._thread.join(timeout_s + _LAST_STEP_S)
        else:
            self._runner.close()
        # A step cannot be interrupted; nobody waits for one that hangs.
        self._end(EngineState.STOPPED, Cancelled("the engine was stopped"))

    def stop(self) -> None:
        """Cancel everything and stop the thread after the step that is running."""
        self.drain(0.0)

    def _refuse_unless_running(self) -> None:
        if self._state is EngineState.DEAD:
            raise EngineDead("the engine ended on an error and computes nothing more")
        if self._state is not EngineState.RUNNING:
            raise Stopping("the engine is shutting down")

    def _post(self, command: Callable[[], None]) -> None:
        """Leave a command for the engine thread; the lock is held."""
        if self._state in (EngineState.RUNNING, EngineState.DRAINING):
            self._inbox.append(command)
            self._changed.notify()

    def _run(self) -> None:
        """The engine thread."""
        try:
            while self._wait_for_work():
                self._run_inbox()
                self._loop.go_on()
            self._waiters.wake()
            self._end(EngineState.STOPPED, Cancelled("the engine was stopped"))
        except BaseException as error:
            log.exception("the engine thread ended on an error")
            self._waiters.wake()
            self._end(EngineState.DEAD, EngineDead(f"the engine ended on an error ({type(error).__name__})"))
            if self.on_dead:
                self.on_dead()
        finally:
            self._runner.close()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when it is time to stop."""
        with self._changed:
            while self._state is EngineState.RUNNING and not self._inbox and not self._scheduler.has_work():
                self._changed.wait()
            if self._state is EngineState.DRAINING:
                return len(self._waiters) > 0 and time.monotonic() < self._drain_until
            return self._state is EngineState.RUNNING

    def _run_inbox(self) -> None:
        with self._changed:
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            command()
        if commands:
            self._loop.read_stats()

    def _admit(self, request: Request) -> None:
        try:
            self._scheduler.submit(request)
        except EngineError as refusal:
            self._waiters.fail(request.request_id, refusal)
        else:
            self._waiters.accept(request.request_id)

    def _follow(self, policy: Policy) -> None:
        self._scheduler.policy = policy

    def _cancel(self, request_id: str) -> None:
        self._scheduler.cancel(request_id)
        self._waiters.cancel(request_id)

    def _end(self, state: EngineState, error: EngineError) -> None:
        """Enter a final state, unless one was entered before, and answer everyone who still waits."""
        with self._changed:
            if self._state not in (EngineState.STOPPED, EngineState.DEAD):
                self._state = state
            self._inbox.clear()
        self._waiters.fail_all(error)

"""The page's view of the engine: recent steps, rates, settings and when they changed, polled once for all browsers.

Works with any backend: one without `/engine` is recognised as another server and only asked whether it answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

MAX_STEPS = 300
POLL_S = 0.2
SLOW_POLL_S = 1.0
RATE_WINDOW_S = 10.0
MAX_MARKS = 20
RESTART_S = 60.0
"""How long an engine of our own that died is waited for."""
ONE_CHANGE_S = 1.5
"""Changes of one setting this close together, as a slider makes them on its way, are one change."""
SLIDER_SPAN = 8
"""How far the budget's slider reaches above the budget first seen, where the engine names no bound."""


class EngineState(StrEnum):
    """What the page says of the backend. `OTHER` answers, but is not our engine."""

    STARTING = "starting"
    RUNNING = "running"
    OTHER = "other"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second and inter-token latencies (ms; None without a token), both over the last `RATE_WINDOW_S`."""

    tokens_per_s: float
    itl_p50_ms: float | None
    itl_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine says of itself beside its steps."""

    max_num_batched_tokens: int
    max_num_seqs: int
    step_policy: str
    step_policies: tuple[str, ...] = ()
    target_itl_ms: float | None = None
    step_token_budget: int | None = None
    """What the policy allowed the latest step."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A setting changed after the step `step_id` (-1: before the first)."""

    step_id: int
    setting: str
    before: str | float | None
    after: str | float | None
    t_mono: float


@dataclass(frozen=True, slots=True)
class Loading:
    """What an engine of ours that is starting does: the phase in words, its last line or none, and how long, in s."""

    phase: str
    detail: str
    phase_s: float
    elapsed_s: float


class EngineLink:
    """Follows the backend at `base_url` (ending in `/v1`). Readable at any time; a backend that is away is a state.

    `is_own` says that somebody restarts it when it dies.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, is_own: bool = False) -> None:
        self._root = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=2.0, trust_env=False)
        self._api = base_url.rstrip("/")
        self._asking = asyncio.Lock()  # else an answer from before a change could be taken in after it
        self._decoded: deque[tuple[float, dict[str, Any]]] = deque()
        self.is_own = is_own
        self.state = EngineState.STARTING
        self._answers = asyncio.Event()
        self.loading: Loading | None = None
        """What a starting engine is at; None while it does not say, and once it runs."""
        self.settings: EngineSettings | None = None
        self.steps: deque[dict[str, Any]] = deque(maxlen=MAX_STEPS)
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.max_budget = 0
        self.generation = 0
        """Grows when step numbers start over, because the engine did."""

    async def follow(self) -> None:
        """Poll until cancelled: five times a second while the engine answers, else once a second."""
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S if self.state is EngineState.RUNNING else SLOW_POLL_S)

    async def poll(self) -> None:
        """Ask once and take the answer in."""
        async with self._asking:
            await self._poll()

    async def until_answering(self) -> None:
        """Wait for an engine of our own that is being started, or (for a while) restarted; never for any other."""
        if self.is_own:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.state is EngineState.STARTING else RESTART_S):
                    await self._answers.wait()

    async def change(self, wanted: dict[str, Any]) -> str | None:
        """Ask the engine for other settings, by its own names. Returns why it refused, in one line, or None."""
        async with self._asking:
            await self._poll()  # what the last steps ran under is then known, and the mark stands right after them
            try:
                reply = await self._http.patch(f"{self._root}/engine/config", json=wanted)
                if reply.status_code != httpx.codes.OK:
                    return str(reply.json()["error"]["message"])
                before = self.settings
                self._take_settings(reply.json())
                if before is not None and self.settings is not None and "target_itl_ms" in wanted:
                    self._mark("target_itl_ms", before.target_itl_ms, self.settings.target_itl_ms)
                return None
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                return "The engine did not answer."

    def rates(self) -> Rates:
        """The engine's pace now."""
        oldest = time.monotonic() - RATE_WINDOW_S
        while self._decoded and self._decoded[0][0] < oldest:
            self._decoded.popleft()
        steps = [step for _, step in self._decoded]
        itl_ms = sorted(step["elapsed_ms"] for step in steps)
        return Rates(
            tokens_per_s=sum(step["decode_tokens"] for step in steps) / RATE_WINDOW_S,
            itl_p50_ms=itl_ms[len(itl_ms) // 2] if itl_ms else None,
            itl_p99_ms=itl_ms[int(len(itl_ms) * 0.99)] if itl_ms else None,
        )

    async def close(self) -> None:
        """Free the connections."""
        await self._http.aclose()

    async def _poll(self) -> None:
        since = self.steps[-1]["step_id"] if self.steps else -1
        try:
            reply = await self._http.get(f"{self._root}/engine/steps", params={"since": since, "limit": MAX_STEPS})
            if reply.status_code == httpx.codes.OK:
                self._take(reply.json())
            elif reply.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
                models = await self._http.get(f"{self._api}/models")
                self._set_state(EngineState.OTHER if models.status_code < 500 else EngineState.DOWN)
            elif reply.status_code == httpx.codes.SERVICE_UNAVAILABLE and "phase" in (told := reply.json()):
                self._set_state(EngineState.STARTING)
                self.loading = Loading(
                    str(told["phase"]), str(told["detail"]), float(told["phase_s"]), float(told["elapsed_s"])
                )
            else:
                self._lost()
        except httpx.ConnectError:
            self._lost()
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            if self.loading is None:  # an engine that loads may be too busy to answer in time
                self._lost()

    def _take(self, body: dict[str, Any]) -> None:
        self._take_settings(body)
        now = time.monotonic()
        for step in body["steps"]:
            self.steps.append(step)
            # At first sight steps are history, not pace.
            if self.state is EngineState.RUNNING and step["decode_tokens"]:
                self._decoded.append((now, step))
        self._set_state(EngineState.RUNNING)

    def _take_settings(self, body: dict[str, Any]) -> None:
        before = self.settings
        after = self.settings = EngineSettings(
            max_num_batched_tokens=int(body["max_num_batched_tokens"]),
            max_num_seqs=int(body["max_num_seqs"]),
            step_policy=str(body["step_policy"]),
            step_policies=tuple(body.get("step_policies") or ()),
            target_itl_ms=body.get("target_itl_ms"),
            step_token_budget=body.get("step_token_budget"),
        )
        named = body.get("hard_num_batched_tokens")
        self.max_budget = int(named) if named else self.max_budget or SLIDER_SPAN * after.max_num_batched_tokens
        if before is not None and self.state is EngineState.RUNNING:
            self._mark("max_num_batched_tokens", before.max_num_batched_tokens, after.max_num_batched_tokens)
            self._mark("step_policy", before.step_policy, after.step_policy)

    def _mark(self, setting: str, before: str | float | None, after: str | float | None) -> None:
        """Note a change, if it is one, after the newest step."""
        if before == after:
            return
        now = time.monotonic()
        last = next((mark for mark in reversed(self.marks) if mark.setting == setting), None)
        if last is not None and now - last.t_mono < ONE_CHANGE_S:
            self.marks.remove(last)
            before = last.before
        if before != after:
            self.marks.append(Mark(self.steps[-1]["step_id"] if self.steps else -1, setting, before, after, now))

    def _lost(self) -> None:
        if self.state is not EngineState.STARTING or self.loading is not None:  # else it never was there
            self._set_state(EngineState.DOWN)

    def _set_state(self, state: EngineState) -> None:
        if state is not EngineState.RUNNING and (self.steps or self.marks):
            self.steps.clear()  # a new engine counts its steps from the start
            self._decoded.clear()
            self.marks.clear()
            self.generation += 1
        self.state = state
        self.loading = None
        if state in (EngineState.RUNNING, EngineState.OTHER):
            self._answers.set()
        else:
            self._answers.clear()

"""The page's view of the engine: its recent steps, its rates and its token budget, polled once for all browsers.

Works with any backend: one without `/engine` is recognised as another server and only asked whether it answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

MAX_STEPS = 300
POLL_S = 0.2
SLOW_POLL_S = 1.0
RATE_WINDOW_S = 3.0
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
    """Tokens per second over the last seconds and inter-token latencies (ms) over the last steps that decoded."""

    tokens_per_s: float
    itl_p50_ms: float | None
    itl_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine says of itself beside its steps."""

    max_num_batched_tokens: int
    max_num_seqs: int
    step_policy: str


class EngineLink:
    """Follows the backend at `base_url` (ending in `/v1`). Readable at any time; a backend that is away is a state."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._root = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=2.0, trust_env=False)
        self._api = base_url.rstrip("/")
        self._decoded: deque[tuple[float, int]] = deque()
        self.state = EngineState.STARTING
        self.settings: EngineSettings | None = None
        self.steps: deque[dict[str, Any]] = deque(maxlen=MAX_STEPS)
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
        since = self.steps[-1]["step_id"] if self.steps else -1
        try:
            reply = await self._http.get(f"{self._root}/engine/steps", params={"since": since, "limit": MAX_STEPS})
            if reply.status_code == httpx.codes.OK:
                self._take(reply.json())
            elif reply.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
                models = await self._http.get(f"{self._api}/models")
                self._set_state(EngineState.OTHER if models.status_code < 500 else EngineState.DOWN)
            else:
                self._lost()
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self._lost()

    async def set_budget(self, num_tokens: int) -> str | None:
        """Ask the engine for another token budget. Returns why it refused, in one line, or None."""
        try:
            reply = await self._http.patch(f"{self._root}/engine/config", json={"max_num_batched_tokens": num_tokens})
            if reply.status_code == httpx.codes.OK:
                self._take_settings(reply.json())
                return None
            return str(reply.json()["error"]["message"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return "The engine did not answer."

    def rates(self) -> Rates:
        """The engine's pace now."""
        oldest = time.monotonic() - RATE_WINDOW_S
        while self._decoded and self._decoded[0][0] < oldest:
            self._decoded.popleft()
        num_tokens = sum(tokens for _, tokens in self._decoded)
        itl_ms = sorted(step["elapsed_ms"] for step in self.steps if step["decode_tokens"])
        return Rates(
            tokens_per_s=num_tokens / RATE_WINDOW_S,
            itl_p50_ms=itl_ms[len(itl_ms) // 2] if itl_ms else None,
            itl_p99_ms=itl_ms[int(len(itl_ms) * 0.99)] if itl_ms else None,
        )

    async def close(self) -> None:
        """Free the connections."""
        await self._http.aclose()

    def _take(self, body: dict[str, Any]) -> None:
        self._take_settings(body)
        now = time.monotonic()
        for step in body["steps"]:
            self.steps.append(step)
            if self.state is EngineState.RUNNING:  # at first sight the steps are history, not pace
                self._decoded.append((now, int(step["decode_tokens"])))
        self._set_state(EngineState.RUNNING)

    def _take_settings(self, body: dict[str, Any]) -> None:
        self.settings = EngineSettings(
            max_num_batched_tokens=int(body["max_num_batched_tokens"]),
            max_num_seqs=int(body["max_num_seqs"]),
            step_policy=str(body["step_policy"]),
        )
        named = body.get("hard_num_batched_tokens")
        reach = SLIDER_SPAN * self.settings.max_num_batched_tokens
        self.max_budget = int(named) if named else self.max_budget or reach

    def _lost(self) -> None:
        if self.state is not EngineState.STARTING:
            self._set_state(EngineState.DOWN)

    def _set_state(self, state: EngineState) -> None:
        if state is not EngineState.RUNNING and self.steps:
            self.steps.clear()  # a new engine counts its steps from the start
            self._decoded.clear()
            self.generation += 1
        self.state = state

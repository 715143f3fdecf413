"""What our own engine tells beyond the OpenAI API: its steps, and a dial for the token budget.

A server without it is recognised as another one. Steps are put onto this process's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from ui.bench.endpoint import Say
from ui.errors import UsageError

PAGE = 2048
"""Steps per answer; the engine remembers twice as many."""
SAME_CLOCK_S = 2.0
"""A step seen so soon after it ended was stamped by this machine's own clock."""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step of the engine. `t` is its start on this process's clock, or close to it for another machine's engine."""

    t: float
    elapsed_ms: float
    decode_tokens: int
    prefill_tokens: int
    encoder_slices: int

    @property
    def is_bare_decode(self) -> bool:
        """Nothing but running answers, one token each."""
        return self.decode_tokens > 0 and self.prefill_tokens == 0 and self.encoder_slices == 0


class Engine:
    """The engine behind `base_url` (ending in `/v1`). Blocking calls; meant for the pauses between measurements."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        root = base_url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(base_url=root, headers=headers, timeout=10.0, trust_env=False)
        self._last_id: int | None = None
        self._offset_s = 0.0

    def close(self) -> None:
        """Free the connection."""
        self._http.close()

    def settings(self) -> dict[str, Any] | None:
        """The engine's own settings beside its steps, or None if this is another server."""
        try:
            body = self._get(limit=0)
            return {name: value for name, value in body.items() if name != "steps"} | {
                "max_num_batched_tokens": int(body["max_num_batched_tokens"]),
                "max_num_seqs": int(body["max_num_seqs"]),
            }
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def new_steps(self) -> list[EngineStep]:
        """The steps since the last call; empty on any trouble.

        The first call gives none: it marks the latest step, and tells whose clock that is on, so it belongs right after
        an answer.
        """
        steps: list[EngineStep] = []
        try:
            if self._last_id is None:
                latest = self._get(limit=1)["steps"]
                self._last_id = int(latest[0]["step_id"]) if latest else -1
                self._offset_s = _offset_of(latest[0]) if latest else 0.0
                return steps
            while page := self._get(limit=PAGE, since=self._last_id)["steps"]:
                self._last_id = int(page[-1]["step_id"])
                steps += [_step(raw, self._offset_s) for raw in page]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            pass
        return steps

    def set_budget(self, num_tokens: int | Literal["auto"]) -> None:
        """Change the token budget of a step; raises `UsageError` with the engine's own reason."""
        try:
            reply = self._http.patch("/engine/config", json={"max_num_batched_tokens": num_tokens})
            if reply.status_code == httpx.codes.OK:
                return
            reason = str(reply.json()["error"]["message"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            reason = str(error) or type(error).__name__
        raise UsageError(f"the engine did not take a token budget of {num_tokens}: {reason}")

    @contextmanager
    def budget_restored(self, settings: Mapping[str, Any], say: Say) -> Iterator[None]:
        """Set the budget back to what `settings` say on every way out, and say so if that fails."""
        before = settings["max_num_batched_tokens"] if settings.get("is_budget_exact", True) else "auto"
        try:
            yield
        finally:
            try:
                self.set_budget(before)
            except UsageError as error:
                say(f"the token budget could not be set back to {before}: {error}")

    def _get(self, **params: int) -> dict[str, Any]:
        reply = self._http.get("/engine/steps", params=params)
        reply.raise_for_status()
        return reply.json()


def _offset_of(latest: dict[str, Any]) -> float:
    """What to add to the engine's clock to get ours, by a step that has just ended; nothing if it runs here."""
    delay = time.monotonic() - (float(latest["t_mono"]) + float(latest["elapsed_ms"]) / 1e3)
    return 0.0 if 0 <= delay < SAME_CLOCK_S else delay


def _step(raw: dict[str, Any], offset_s: float) -> EngineStep:
    return EngineStep(
        t=float(raw["t_mono"]) + offset_s,
        elapsed_ms=float(raw["elapsed_ms"]),
        decode_tokens=int(raw["decode_tokens"]),
        prefill_tokens=int(raw["prefill_tokens"]),
        encoder_slices=int(raw["encoder_slices"]),
    )

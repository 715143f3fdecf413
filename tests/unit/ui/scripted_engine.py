"""A real HTTP server with our engine's routes beside OpenAI's, whose steps and refusals are set by the test."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

from backend.server.waiting_room import loading_body
from backend.startup import Progress


def a_step(step_id: int, **values: Any) -> dict[str, Any]:
    step = {
        "step_id": step_id,
        "t_mono": float(step_id),
        "elapsed_ms": 20.0,
        "decode_tokens": 1,
        "prefill_tokens": 0,
        "encoder_slices": 0,
        "num_running": 1,
        "num_waiting": 0,
        "kv_usage": 0.1,
    }
    return step | values


@dataclass
class ScriptedEngine:
    """`async with` serves it; `is_ours=False` makes it a backend without `/engine`. Can be left and entered again.

    While `loading` is set, that is what it says of its start, and nothing else.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    budget: int = 64
    policy: str = "stall-free"
    target_itl_ms: float | None = None
    is_ours: bool = True
    max_num_seqs: int = 8
    port: int = 0
    loading: Progress | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> ScriptedEngine:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(self._app(), log_level="warning", lifespan="off"))
        self._serving = asyncio.create_task(self._server._serve([listener]))
        while not self._server.started:  # noqa: ASYNC110 - uvicorn offers a flag, not an event
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        await self._serving

    def _head(self) -> dict[str, Any]:
        return {
            "max_num_batched_tokens": self.budget,
            "max_num_seqs": self.max_num_seqs,
            "step_policy": self.policy,
            "step_policies": ["stall-free", "latency-target"],
            "target_itl_ms": self.target_itl_ms,
            "step_token_budget": self.budget,
            "hard_num_batched_tokens": 512,
        }

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def unless_loading(request: Request, answer: RequestResponseEndpoint) -> Response:
            if self.loading is not None:
                return JSONResponse(loading_body(self.loading), 503)
            is_foreign = not self.is_ours and request.url.path.startswith("/engine")
            return JSONResponse({}, 404) if is_foreign else await answer(request)

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "t"}]}

        @app.get("/engine/steps")
        async def steps(since: int = -1, limit: int = 300) -> dict[str, Any]:
            return {"steps": [step for step in self.steps if step["step_id"] > since][-limit:], **self._head()}

        @app.patch("/engine/config")
        async def config(request: Request) -> JSONResponse:
            wanted = await request.json()
            if wanted.get("max_num_batched_tokens", self.budget) < self.max_num_seqs:
                return JSONResponse({"error": {"message": f"less than --max-num-seqs {self.max_num_seqs}"}}, 400)
            self.budget = wanted.get("max_num_batched_tokens", self.budget)
            self.policy = wanted.get("step_policy", self.policy)
            self.target_itl_ms = wanted.get("target_itl_ms", self.target_itl_ms)
            return JSONResponse(self._head())

        return app

"""A real HTTP server that speaks OpenAI's streaming API with token times that the test sets. Runs in its own thread.

`is_ours=True` gives it our engine's routes, too.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Asked:
    """One chat request as it came in, and how many others were being answered then."""

    body: dict[str, Any]
    headers: dict[str, str]
    t: float
    beside: int

    @property
    def content(self) -> Any:
        return self.body["messages"][0]["content"]

    @property
    def is_camera(self) -> bool:
        return not isinstance(self.content, str)


@dataclass
class ScriptedLLM:
    """Answers with `max_tokens` words, one per `gap_s`; a frame's first word takes `encode_s`, a text's `ttft_s`.

    `eos_after` ends an answer early unless `ignore_eos` was asked for. `breaks` ends a stream without saying that it is
    over, as a proxy does whose server died. `on_ask` is told of every chat request, on the server's thread. Use as
    `with`.
    """

    gap_s: float = 0.002
    ttft_s: float = 0.0
    encode_s: float = 0.0
    eos_after: int | None = None
    refuses_ignore_eos: bool = False
    refuses: Callable[[Asked], tuple[int, str] | None] = lambda asked: None
    api_key: str | None = None
    html: bool = False
    is_loading: bool = False
    breaks: bool = False
    model_len: int | None = 4096
    is_ours: bool = False
    budget: int = 64
    budgets: list[int] = field(default_factory=list)
    refuses_budget: int | None = None
    on_ask: Callable[[Asked], None] = lambda asked: None
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    _running: int = 0
    _step_id: int = 0
    _steps: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(10)

    @property
    def chats(self) -> list[Asked]:
        return [asked for asked in self.asked if not asked.is_camera]

    @property
    def frames(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.is_camera]

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await self._stopped.wait()
        server.close()
        for writer in self._connections:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may go on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path = head[0].split()[:2]
        path = path.partition("?")[0]
        if self.html:
            return await _reply(writer, 200, b"<html>hello</html>", "text/html")
        if self.is_loading:
            return await _json(writer, 503, {"error": {"message": "the model is being loaded; ask again in a moment"}})
        if self.api_key and headers.get("authorization") != f"Bearer {self.api_key}":
            return await _json(writer, 401, {"error": {"message": "a key, please"}})
        if path == "/v1/models":
            model = {
                "id": "scripted",
                "object": "model",
                "created": 0,
                "owned_by": "t",
                "max_model_len": self.model_len,
            }
            return await _json(writer, 200, {"object": "list", "data": [model]})
        if path == "/v1/chat/completions":
            asked = Asked(json.loads(raw), headers, time.monotonic(), self._running)
            self.asked.append(asked)
            self.on_ask(asked)
            return await self._chat(asked, reader, writer)
        if self.is_ours and path == "/engine/steps":
            return await _json(writer, 200, self._steps_since(head[0].split()[1]))
        if self.is_ours and path == "/engine/config" and method == "PATCH":
            return await self._set_budget(json.loads(raw)["max_num_batched_tokens"], writer)
        return await _json(writer, 404, {"error": {"message": f"no such path {path}"}})

    async def _chat(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        refusal = self.refuses(asked)
        if self.refuses_ignore_eos and "ignore_eos" in asked.body:
            refusal = (400, "unknown field ignore_eos")
        if refusal:
            return await _json(writer, refusal[0], {"error": {"message": refusal[1]}})
        self._running += 1
        try:
            await self._stream(asked, writer)
        finally:
            self._running -= 1
        return not self.breaks

    async def _stream(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        wanted = asked.body["max_tokens"]
        if self.eos_after is not None and not asked.body.get("ignore_eos"):
            wanted = min(wanted, self.eos_after)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await _event(writer, _chunk({"role": "assistant", "content": ""}))
        await asyncio.sleep(self.encode_s if asked.is_camera else self.ttft_s)
        for number in range(wanted):
            if number:
                await asyncio.sleep(self.gap_s)
            await _event(writer, _chunk({"content": f"w{number} "}))
            self._step(slices=asked.is_camera and number == 0)
        if self.breaks:
            await _end(writer)
            return
        await _event(writer, _chunk({}, "length"))
        usage = {"prompt_tokens": num_prompt_tokens(asked), "completion_tokens": wanted, "total_tokens": 0}
        await _event(writer, _chunk({}) | {"choices": [], "usage": usage})
        await _raw(writer, b"data: [DONE]\n\n")
        await _end(writer)

    def _step(self, *, slices: bool) -> None:
        self._step_id += 1
        step = {"step_id": self._step_id, "t_mono": time.monotonic(), "elapsed_ms": 2.0, "decode_tokens": 1}
        self._steps.append(step | {"prefill_tokens": 0, "encoder_slices": int(slices)})

    def _steps_since(self, target: str) -> dict[str, Any]:
        query = dict(pair.split("=") for pair in target.partition("?")[2].split("&") if pair)
        limit = int(query.get("limit", 2048))
        since = query.get("since")
        new = self._steps if since is None else [step for step in self._steps if step["step_id"] > int(since)]
        chosen = new[-limit:] if since is None else new[:limit]
        return {"steps": chosen if limit else []} | self._head()

    def _head(self) -> dict[str, Any]:
        return {
            "max_num_batched_tokens": self.budget,
            "max_num_seqs": 8,
            "hard_num_batched_tokens": 512,
            "step_policy": "stall-free",
        }

    async def _set_budget(self, wanted: int, writer: asyncio.StreamWriter) -> bool:
        if wanted == self.refuses_budget:
            return await _json(writer, 400, {"error": {"message": f"{wanted} is not to my taste"}})
        self.budget = wanted
        self.budgets.append(wanted)
        return await _json(writer, 200, self._head())


def num_prompt_tokens(asked: Asked) -> int:
    """Two tokens per word and ten beside: a tokenizer that the bench has to find out about."""
    return 10 + 2 * len(asked.content.split()) if isinstance(asked.content, str) else 82


async def _json(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> bool:
    return await _reply(writer, status, json.dumps(body).encode(), "application/json")


async def _reply(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str) -> bool:
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}


async def _event(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    await _raw(writer, f"data: {json.dumps(body)}\n\n".encode())


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _raw(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()

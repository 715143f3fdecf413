"""A real HTTP server that speaks OpenAI's API by script: words, refusals, broken streams, silence."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Words:
    """Stream `words`. `breaks` closes the connection before the end; `ends_with` is an error event in its place.

    `is_cut`: the end came by the limit of tokens.
    """

    words: tuple[str, ...] = ("A ", "man ", "stands.")
    breaks: bool = False
    ends_with: dict[str, Any] | None = None
    pause_s: float = 0.0
    is_cut: bool = False


@dataclass(frozen=True)
class Whole:
    """An answer that is not streamed."""

    content: str


@dataclass(frozen=True)
class Refusal:
    """An error status with an OpenAI error body."""

    status: int
    message: str = "no"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Silence:
    """Accept the request and never answer."""


@dataclass(frozen=True)
class Hangup:
    """Close the connection without an answer."""


@dataclass(frozen=True)
class Page:
    """A web page, as a wrong URL would give."""


Step = Words | Whole | Refusal | Silence | Hangup | Page


@dataclass
class Asked:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    t: float
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  # the client went away before an answer


@dataclass
class ScriptedServer:
    """Answers each chat request by the next step (the last one goes on). Use as `async with`; `url` ends in `/v1`."""

    script: list[Step] = field(default_factory=lambda: [Words()])
    models: tuple[str, ...] = ("scripted-vlm",)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    port: int = 0
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    _connections: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict, repr=False)

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up on everybody: a connection left to itself would still want the loop when that is closed."""
        self._server.close()
        for task, writer in self._connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._connections.clear()
        await asyncio.sleep(0)  # connections end in a callback

    @property
    def chats(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == "/v1/chat/completions"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            asked = await _read(reader)
            self.asked.append(asked)
            self.was_asked.set()
            if asked.path == "/v1/models":
                await _send_json(writer, 200, {"object": "list", "data": [_model(name) for name in self.models]})
            elif asked.path == "/v1/chat/completions":
                step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                await self._answer(step, asked, reader, writer)
            else:
                await _send_json(writer, 404, {"error": {"message": f"no such path {asked.path}"}})
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._connections.pop(task, None)

    async def _answer(
        self, step: Step, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match step:
            case Words():
                await _stream(writer, step)
            case Whole():
                message = {"role": "assistant", "content": step.content}
                whole = _chunk({}, "stop")["choices"][0] | {"message": message}
                await _send_json(writer, 200, _chunk({}, "stop") | {"object": "chat.completion", "choices": [whole]})
            case Refusal():
                body = {"error": {"message": step.message, "type": "error", "code": None}}
                await _send_json(writer, step.status, body, step.headers)
            case Silence():
                with suppress(ConnectionError):  # a reset is an end, too
                    await reader.read()  # until the client goes away
                asked.dropped.set()
            case Page():
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html>hello</html>"
                )
                await writer.drain()
            case Hangup():
                pass


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(head[0].split()[1], headers, json.loads(body) if body else {}, asyncio.get_running_loop().time())


async def _send_json(
    writer: asyncio.StreamWriter, status: int, body: dict[str, Any], headers: tuple[tuple[str, str], ...] = ()
) -> None:
    data = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} Scripted", "content-type: application/json", f"content-length: {len(data)}"]
    head += [f"{name}: {value}" for name, value in headers] + ["connection: close", "", ""]
    writer.write("\r\n".join(head).encode() + data)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, step: Words) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for index, word in enumerate(step.words):
        delta = {"content": word} if index else {"role": "assistant", "content": word}
        await _event(writer, _chunk(delta, None))
        await asyncio.sleep(step.pause_s)
    if step.breaks:
        return
    if step.ends_with is not None:
        await _event(writer, {"error": step.ends_with})
    else:
        await _event(writer, _chunk({}, "length" if step.is_cut else "stop"))
        await _event(writer, _chunk({}, "stop") | {"choices": [], "usage": None})
        await _raw(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _event(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    await _raw(writer, f"data: {json.dumps(body)}\n\n".encode())


async def _raw(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def _chunk(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted-vlm", "choices": [choice]}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tests"}

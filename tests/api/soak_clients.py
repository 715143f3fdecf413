"""Clients of a soak: what they ask is drawn at random, and many leave before they have their answer."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections import Counter
from typing import Any

import httpx
import numpy as np
from PIL import Image

SIZES = ((40, 30), (64, 64), (90, 60), (300, 40), (120, 200), (17, 400))
KINDS = ("PNG", "JPEG", "WEBP", "BMP")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "is_red": {"type": "boolean"}},
    "required": ["name", "is_red"],
    "additionalProperties": False,
}
SENTENCE = "a dog waits beside the bicycle while two people walk along the street and a red car stops"
PATIENCE_S = 60


def picture_uri(seed: int) -> str:
    """One of many pictures, of various sizes and formats."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    kind, buffer = KINDS[seed % len(KINDS)], io.BytesIO()
    Image.fromarray(noise).resize(SIZES[seed % len(SIZES)]).save(buffer, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


class Crowd:
    """`num_clients` clients that ask until `until` (monotonic seconds); `seen` counts what became of it."""

    def __init__(self, root: str, until: float, *, num_clients: int = 8, seed: int = 0) -> None:
        self.seen: Counter[str] = Counter()
        self._root = root
        self._until = until
        self._num_clients = num_clients
        self._seed = seed
        self._uris = [picture_uri(i) for i in range(24)]

    def run(self) -> None:
        """Ask until the time is over; raises what no client may see."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with httpx.AsyncClient(base_url=self._root, timeout=PATIENCE_S) as http:
            clients = [self._client(http, random.Random(f"{self._seed} {i}")) for i in range(self._num_clients)]
            await asyncio.gather(self._operator(http, random.Random(self._seed)), *clients)

    async def _client(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        while time.monotonic() < self._until:
            await self._ask(http, rng)
            await asyncio.sleep(rng.expovariate(20.0))

    async def _operator(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        """Changes the running engine, and looks at it."""
        while time.monotonic() < self._until:
            change: dict[str, Any] = {"max_num_batched_tokens": rng.choice([8, 16, 48, 64, 256])}
            if rng.random() < 0.5:
                change["step_policy"] = rng.choice(["stall-free", "split-fuse", "prefill-first", "latency-target"])
            self._note((await http.patch("/engine/config", json=change)).status_code)
            for path in ("/metrics", "/ready", "/engine/steps?limit=5"):
                reply = await http.get(path)
                assert reply.status_code == 200 or (path == "/ready" and reply.json() == {"status": "queue full"})
            await asyncio.sleep(rng.uniform(0.1, 1.0))

    async def _ask(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        path, body = self._question(rng)
        headers = {"X-Request-Class": "background"} if rng.random() < 0.4 else {}
        leaves = rng.random() < 0.4
        try:
            if body.get("stream"):
                await self._read_stream(http, path, body, headers, rng.randint(0, 12) if leaves else None)
            else:
                timeout = httpx.Timeout(PATIENCE_S, read=rng.uniform(0.001, 0.4) if leaves else PATIENCE_S)
                reply = await http.post(path, json=body, headers=headers, timeout=timeout)
                self._note(reply.status_code)
                if reply.status_code == 200 and "response_format" in body:
                    self._check_schema(reply.json())
        except httpx.ReadTimeout:
            assert leaves, "no answer for a minute"
            self.seen["left"] += 1

    async def _read_stream(
        self, http: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str], max_events: int | None
    ) -> None:
        async with http.stream("POST", path, json=body, headers=headers) as reply:
            self._note(reply.status_code)
            num_events = 0
            last = ""
            async for line in reply.aiter_lines():
                if not line.startswith("data: "):
                    continue
                num_events, last = num_events + 1, line
                if '"code": "overloaded"' in line and body.get("n", 1) > 1:
                    self.seen["429"] += 1  # the other choices of a prompt join the queue when its first has begun
                    return
                assert '"error": {' not in line, f"a stream ends on an error: {line[:200]}"
                if max_events is not None and num_events > max_events:
                    self.seen["left"] += 1
                    return
            if reply.status_code == 200:
                assert last == "data: [DONE]" or "response.completed" in last or "response.incomplete" in last, last[
                    :99
                ]

    def _note(self, status: int) -> None:
        assert status < 500, f"status {status}"
        self.seen[str(status)] += 1

    def _check_schema(self, reply: dict[str, Any]) -> None:
        for choice in reply["choices"]:
            if choice["finish_reason"] == "stop":
                assert isinstance(json.loads(choice["message"]["content"])["is_red"], bool)
                self.seen["structured"] += 1

    def _question(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        fields: dict[str, Any] = {"model": "tiny", "stream": rng.random() < 0.6, "temperature": rng.choice([0, 1])}
        kind = rng.choice(["chat"] * 5 + ["structured", "responses", "responses", "completions", "wrong"])
        if kind == "wrong":
            return "/v1/chat/completions", fields | self._wrong(rng)
        num_tokens = rng.randint(1, 60)
        if kind == "completions":
            prompts = [self._text(rng) for _ in range(rng.randint(1, 3))]
            return "/v1/completions", fields | {"prompt": prompts, "max_tokens": num_tokens, "n": rng.randint(1, 2)}
        uris = rng.choices(self._uris, k=rng.choice([0, 0, 1, 1, 2, 3]))
        if kind == "responses":
            parts: list[dict[str, Any]] = [{"type": "input_image", "image_url": uri} for uri in uris]
            parts.append({"type": "input_text", "text": self._text(rng)})
            said = [{"role": "user", "content": parts}]
            return "/v1/responses", fields | {"input": said, "max_output_tokens": num_tokens}
        parts = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
        rng.shuffle(parts)
        parts.insert(rng.randint(0, len(parts)), {"type": "text", "text": self._text(rng)})
        fields |= {
            "messages": [{"role": "user", "content": parts}],
            "max_tokens": num_tokens,
            "n": rng.choice([1, 1, 3]),
        }
        if kind == "structured":
            form = {"type": "json_schema", "json_schema": {"name": "seen", "schema": SCHEMA, "strict": True}}
            fields |= {"response_format": form, "max_tokens": 60}
        elif rng.random() < 0.5:
            fields |= {"ignore_eos": True, "logprobs": rng.random() < 0.3, "frequency_penalty": rng.choice([0, 0.5])}
        return "/v1/chat/completions", fields

    def _text(self, rng: random.Random) -> str:
        """Some prompts begin alike, so that they are found in the prefix cache."""
        head = "Look closely and tell what you see, in one sentence of your own. " if rng.random() < 0.5 else ""
        return head + " ".join(rng.choices(SENTENCE.split(), k=rng.choice([1, 5, 20, 60])))

    def _wrong(self, rng: random.Random) -> dict[str, Any]:
        """A request that must be refused."""
        uri = rng.choice(self._uris)
        broken = {"type": "image_url", "image_url": {"url": uri[: len(uri) // 2]}}
        return rng.choice(
            [
                {"messages": [{"role": "user", "content": [broken]}]},
                {"messages": [{"role": "user", "content": "word " * 2000}]},
                {"messages": [{"role": "user", "content": "hi"}], "n": 0},
                {"messages": [{"role": "user", "content": "hi"}], "model": "other"},
                {"messages": []},
            ]
        )

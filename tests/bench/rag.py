"""A document that fills the window arrives while four chats stream: the longest gap of any chat, by step policy.

    python -m tests.bench.rag [MODEL] [--max-model-len 4096] [--policies stall-free,prefill-first]

Starts a server of its own on a free port. Each policy gets the same chats and a document of its own, so that nothing
of it is found in the prefix cache. Prints each policy's longest gap and time to the document's first token, and how
many times as long the last one's gap is as the first one's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

NUM_CHATS = 4
WARM_TOKENS = 10
"""Each chat has so many before the document comes."""

ANSWER_TOKENS = 4


@dataclass
class Measured:
    """When each chat got something, and when the document came and began to be answered; monotonic seconds."""

    arrivals: list[list[float]] = field(default_factory=lambda: [[] for _ in range(NUM_CHATS)])
    t_sent: float = 0.0
    t_answered: float = 0.0

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two tokens of one chat, of those that the document's time touches."""
        return max(
            later - earlier
            for times in self.arrivals
            for earlier, later in pairwise(times)
            if later >= self.t_sent and earlier <= self.t_answered
        )


@contextmanager
def serving(arguments: list[str]) -> Iterator[str]:
    """The address of a server of our own."""
    command = [sys.executable, "-m", "backend.server", "--port=0", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            print(line, end="", flush=True)
            if line.startswith("Serving "):
                yield line.rstrip().rsplit(" ", 1)[1].removesuffix("/v1")
                return
        raise SystemExit("the server did not start")
    finally:
        server.terminate()
        server.wait(30)


async def measure(http: httpx.AsyncClient, model: str, policy: str, num_tokens: int, seed: int) -> Measured:
    """One policy: chats stream, then the document comes; ends when its answer does."""
    (await http.patch("/engine/config", json={"step_policy": policy})).raise_for_status()
    measured, are_warm = Measured(), asyncio.Event()
    chats = [asyncio.create_task(_chat(http, model, i, measured, are_warm)) for i in range(NUM_CHATS)]
    await are_warm.wait()
    rng = random.Random(seed)
    prompt = [rng.randrange(1000, 8000) for _ in range(num_tokens - ANSWER_TOKENS)]
    body = {"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "stream": True}
    measured.t_sent = time.monotonic()
    async for _ in _events(http, "/v1/completions", body):
        measured.t_answered = measured.t_answered or time.monotonic()
    for chat in chats:
        chat.cancel()
        with suppress(asyncio.CancelledError):
            await chat
    return measured


async def _chat(http: httpx.AsyncClient, model: str, number: int, measured: Measured, are_warm: asyncio.Event) -> None:
    said = [{"role": "user", "content": f"Tell a long story about {number + 2} dogs."}]
    body = {"model": model, "messages": said, "ignore_eos": True, "stream": True, "temperature": 1, "seed": number}
    async for event in _events(http, "/v1/chat/completions", body):
        if event["choices"][0]["delta"].get("content"):
            measured.arrivals[number].append(time.monotonic())
            if min(map(len, measured.arrivals)) >= WARM_TOKENS:
                are_warm.set()


async def _events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with http.stream("POST", path, json=body) as reply:
        if reply.is_error:
            raise SystemExit((await reply.aread()).decode())
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


async def compare(root: str, policies: list[str]) -> None:
    """Measure each policy and print what came of it."""
    gaps: list[float] = []
    async with httpx.AsyncClient(base_url=root, timeout=300) as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        print(f"{NUM_CHATS} chats; a document of {model['max_model_len'] - ANSWER_TOKENS} tokens", flush=True)
        for seed, policy in enumerate(policies):
            measured = await measure(http, model["id"], policy, model["max_model_len"], seed)
            gaps.append(measured.longest_gap_s)
            ttft_s = measured.t_answered - measured.t_sent
            print(f"{policy}: longest gap {gaps[-1] * 1e3:.0f} ms; document answered after {ttft_s:.2f} s", flush=True)
    print(f"{policies[-1]} / {policies[0]}: the longest gap is {gaps[-1] / gaps[0]:.1f} times as long")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--policies", default="stall-free,prefill-first")
    asked = parser.parse_args()
    with serving([f"--model={asked.model}", f"--max-model-len={asked.max_model_len}"]) as root:
        asyncio.run(compare(root, asked.policies.split(",")))


if __name__ == "__main__":
    main()

"""What a step and a request cost beside the model: `python -m tests.bench.overhead [MODEL_DIR]`. Prints tables.

The text model is a stand-in that holds a step for 4 ms without computing, as compiled loops do: away from Python, so
that readers of the answers run meanwhile. MODEL_DIR adds the growth of a real decode step with the queue. Figures are
medians; run it while nothing else does.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from backend.engine import Engine
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.encoder_cache import EncoderCache
from backend.runtime.flight import LaunchedStep
from backend.runtime.runner import Runner
from backend.sched.policy import make_policy
from backend.sched.scheduler import Scheduler
from backend.server.__main__ import SWITCH_S
from backend.server.app import create_app
from backend.server.port import take_port
from backend.server.serving import Server
from backend.service import Service, build_service
from backend.types.request import Prepared, Request, SamplingParams
from backend.types.scheduler import SchedulerLimits
from tests.api.scripted import ScriptedAdapter, ScriptedRunner, scripted_limits, scripted_service
from tests.bench.one_stream import PATH
from tests.unit.runtime.toy import ToyAdapter

VOCAB_SIZE, MODEL_S, NUM_STEPS = 49152, 0.004, 150
CLOCK = time.perf_counter


class IdleText:
    """A text model that waits instead of computing. `times` has the begin and end of every step's stay in it."""

    def __init__(self, model_s: float = MODEL_S) -> None:
        self.times: list[tuple[float, float]] = []
        self._model_s = model_s
        self._logits = torch.zeros(256, VOCAB_SIZE)
        self._logits[:, 7] = 1.0
        self._likeliest = torch.full((256,), 7)
        self._begin = 0.0

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        self._begin = CLOCK()
        time.sleep(self._model_s)
        return embeds

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._logits[: len(hidden)]
        self.times.append((self._begin, CLOCK()))
        return logits

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """Found inside the model, as compiled heads do."""
        self.logits(hidden)
        return self._likeliest[: len(hidden)]


class Parts:
    """Seconds spent in functions, by name, call after call."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self._watched: list[tuple[Any, str, Any]] = []

    def watch(self, owner: Any, name: str, title: str) -> None:
        """Time every call of `owner.name` from now on."""
        call, times = getattr(owner, name), self.times.setdefault(title, [])

        def timed(*arguments: Any) -> Any:
            begin = CLOCK()
            try:
                return call(*arguments)
            finally:
                times.append(CLOCK() - begin)

        self._watched.append((owner, name, call))
        setattr(owner, name, timed)

    def stop(self) -> None:
        """Time nothing any more."""
        for owner, name, call in self._watched:
            setattr(owner, name, call)

    def median_us(self, title: str) -> float:
        """Microseconds of the middle call, start and end of the run left out."""
        times = self.times[title]
        return statistics.median(times[len(times) // 4 : -len(times) // 4 or None]) * 1e6


def limits_of(num_seqs: int) -> SchedulerLimits:
    return scripted_limits(
        max_num_batched_tokens=512, hard_num_batched_tokens=512, max_num_seqs=num_seqs, max_model_len=1024,
        num_blocks=8192, max_num_waiting=1024,
    )  # fmt: skip


def request(number: int, max_tokens: int) -> Request:
    """A prompt of 48 tokens; `number` keeps them apart."""
    token_ids = (number % 15, number // 15 % 15, *range(1, 13), *range(12), *range(12), *range(10))
    return Request(
        f"r{number}",
        Prepared(token_ids, (), (), (range(len(token_ids)),)),
        SamplingParams(max_tokens=max_tokens, temperature=0.0),
    )


async def _read(engine: Engine, number: int, max_tokens: int) -> None:
    stream = engine.submit(request(number, max_tokens))
    while (await stream.take())[-1].finish_reason is None:
        pass


async def answer(engine: Engine, num_running: int, num_waiting: int) -> None:
    """Read so many answers to their end; those that wait get no place before."""
    running = [asyncio.create_task(_read(engine, i, NUM_STEPS)) for i in range(num_running)]
    await asyncio.sleep(0.05)
    waiting = [asyncio.create_task(_read(engine, num_running + i, 1)) for i in range(num_waiting)]
    await asyncio.gather(*running)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def measure_steps(num_running: int, num_waiting: int) -> tuple[float, Parts]:
    """Median microseconds between two stays in the model, and the engine's parts."""
    adapter, text, parts = ToyAdapter(), IdleText(), Parts()
    runner = Runner(adapter, text, EncoderCache(adapter), block_size=16)
    limits = limits_of(num_running)
    scheduler = Scheduler(limits, make_policy("stall-free"))
    engine = Engine(scheduler, runner, limits)
    parts.watch(scheduler, "schedule", "schedule")
    parts.watch(runner, "launch", "launch")
    parts.watch(LaunchedStep, "land", "land")
    parts.watch(scheduler, "apply", "apply")
    parts.watch(scheduler.policy, "observe", "observe")
    parts.watch(engine._waiters, "deliver", "deliver")
    parts.watch(engine.metrics, "observe_step", "metrics")
    engine.start()
    asyncio.run(answer(engine, num_running, num_waiting))
    engine.stop()
    parts.stop()
    times = text.times[NUM_STEPS // 4 : 3 * NUM_STEPS // 4]
    inside = statistics.median(end - begin for begin, end in times) * 1e6
    taken = zip(parts.times.pop("launch"), parts.times.pop("land"), strict=True)
    parts.times["layout, sampling"] = [launch + land - inside * 1e-6 for launch, land in taken]
    gaps = [begin - end for (_, end), (begin, _) in itertools.pairwise(times)]
    return statistics.median(gaps) * 1e6, parts


def print_steps() -> None:
    print("\nMicroseconds of a step outside the model, running answers being read meanwhile")
    titles = ("schedule", "layout, sampling", "apply", "observe", "deliver", "metrics")
    print(f"{'running':>8}{'waiting':>8}{'whole':>8}" + "".join(f"{title:>18}" for title in titles))
    for num_running, num_waiting in ((1, 0), (8, 0), (64, 0), (8, 64), (8, 256)):
        whole, parts = measure_steps(num_running, num_waiting)
        columns = "".join(f"{parts.median_us(title):18.0f}" for title in titles)
        print(f"{num_running:8}{num_waiting:8}{whole:8.0f}{columns}", flush=True)


@contextmanager
def serving(service: Service) -> Iterator[int]:
    """The application on a port of its own, in a thread."""
    listener = take_port("127.0.0.1", 0)
    listener.listen(2048)
    ready = threading.Event()
    server = Server(create_app(service), service, on_ready=ready.set, drain_s=0.0)
    service.engine.start()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(30)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def chat(max_tokens: int, model: str = "scripted") -> bytes:
    message = {"role": "user", "content": f"What do you see in the street, {CLOCK()}?"}
    body = {"model": model, "messages": [message], "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    return json.dumps(body).encode()


def print_requests() -> None:
    """End to end as a client in another process sees it, less the time spent in the runner."""
    adapter = ScriptedAdapter(max_model_len=1024)
    runner, model = ScriptedRunner(adapter, step_s=MODEL_S), Parts()
    model.watch(runner, "execute", "model")
    print("\nA streamed chat request, milliseconds beyond the time in the model")
    print(f"{'tokens':>8}{'p50':>8}{'p90':>8}")
    with serving(scripted_service(runner, adapter, limits=limits_of(8))) as port, one_stream(port) as ask:
        for max_tokens in (1, 16, 64):
            overheads = []
            for _ in range(40):
                del model.times["model"][:]
                begin, end = ask(chat(max_tokens))
                overheads.append((end - begin - sum(model.times["model"])) * 1e3)
            overheads.sort()
            print(f"{max_tokens:8}{overheads[20]:8.2f}{overheads[36]:8.2f}", flush=True)


@contextmanager
def one_stream(port: int) -> Iterator[Callable[[bytes], tuple[float, float]]]:
    """A client in a process of its own: sends a body, tells when the request began and when its reply ended."""
    command = [sys.executable, "-m", "tests.bench.one_stream", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        to_client, from_client = client.stdin, client.stdout

        def ask(body: bytes) -> tuple[float, float]:
            to_client.write(body + b"\n")
            to_client.flush()
            begin, end = json.loads(from_client.readline())
            return begin, end

        yield ask
        to_client.close()


def print_waiting_streams(num_streams: int = 200, seconds: float = 4.0) -> None:
    """What streams that wait in the queue take of a core and of memory, beside one that runs."""
    adapter = ScriptedAdapter(max_model_len=8192)
    limits = scripted_limits(max_num_seqs=1, max_model_len=8192, num_blocks=1024, max_num_waiting=1024)
    service = scripted_service(ScriptedRunner(adapter, step_s=0.008), adapter, limits=limits)
    with serving(service) as port:
        first = _open_stream(port, 8000)
        alone = _share_of_core(seconds)
        bytes_before = _resident_bytes()
        streams = [_open_stream(port, 8) for _ in range(num_streams)]
        while service.engine.stats().num_waiting < num_streams:
            time.sleep(0.05)
        memory = (_resident_bytes() - bytes_before) / num_streams
        share = _share_of_core(seconds) - alone
        for stream in (*streams, first):
            stream.close()
    print(f"\n{num_streams} waiting streams: {share:.2%} of a core more than the {alone:.2%} that one running takes;")
    print(f"{memory / 1e3:.0f} kB each, both ends of the connection in this process")


def _open_stream(port: int, max_tokens: int) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", port))
    body = chat(max_tokens)
    stream.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return stream


def _share_of_core(seconds: float) -> float:
    time.sleep(0.5)
    begin, cpu = CLOCK(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (CLOCK() - begin)


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier parts of this script gave back must not leave meanwhile
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def print_growth(model: str) -> None:
    """A real model's decode step of two answers while prompts wait."""
    from backend.config import EngineConfig

    service = build_service(EngineConfig(model=model, max_num_seqs=2), model, lambda line: None)
    engine, vocabulary = service.engine, range(1000, 1040)
    engine.start()
    print("\nDecode step of two answers, milliseconds")
    print(f"{'waiting':>8}{'p50':>8}{'p90':>8}")
    for num_waiting in (0, 64, 256):
        first = engine.metrics.steps.since(None, 1)
        asyncio.run(_answer_for_real(engine, vocabulary, num_waiting))
        steps = engine.metrics.steps.since(first[0].step_id if first else -1, 4096)
        taken = sorted(s.elapsed_ms for s in steps if s.decode_tokens == 2 and s.num_waiting == num_waiting)
        print(f"{num_waiting:8}{taken[len(taken) // 2]:8.2f}{taken[len(taken) * 9 // 10]:8.2f}", flush=True)
    service.close()


async def _answer_for_real(engine: Engine, vocabulary: range, num_waiting: int) -> None:
    async def read(max_tokens: int) -> None:
        token_ids = tuple(vocabulary)
        prompt = Prepared(token_ids, (), (), (range(len(token_ids)),))
        stream = engine.submit(Request(os.urandom(8).hex(), prompt, SamplingParams(max_tokens, temperature=0.0)))
        try:
            while (await stream.take())[-1].finish_reason is None:
                pass
        finally:
            engine.cancel(stream.request_id)

    running = [asyncio.create_task(read(NUM_STEPS)) for _ in range(2)]
    await asyncio.sleep(0.1)
    waiting = [asyncio.create_task(read(1)) for _ in range(num_waiting)]
    await asyncio.gather(*running)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def main(arguments: list[str]) -> None:
    sys.setswitchinterval(SWITCH_S)
    print_steps()
    print_requests()
    print_waiting_streams()
    for model in arguments:
        print_growth(model)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Live servers for the API tests: the real application, engine and scheduler on a real socket, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from backend.config import EngineConfig
from backend.server.__main__ import take_port
from backend.server.app import create_app
from backend.server.serving import Server
from backend.service import Service, build_service
from tests.api.scripted import ScriptedAdapter, ScriptedRunner, scripted_service


@dataclass(frozen=True)
class Live:
    """A running server and the ways to talk to it."""

    service: Service
    server: Server
    root: str

    @property
    def base_url(self) -> str:
        return self.root + "/v1"

    def openai(self, api_key: str = "none") -> OpenAI:
        return OpenAI(base_url=self.base_url, api_key=api_key, max_retries=0, timeout=30)

    def async_openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.base_url, api_key="none", max_retries=0, timeout=30)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.root, timeout=30)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.002)


@contextmanager
def live(service: Service, drain_s: float = 0.5) -> Iterator[Live]:
    listener = take_port("127.0.0.1", 0)
    listener.listen(128)
    root = f"http://127.0.0.1:{listener.getsockname()[1]}"
    ready = threading.Event()
    server = Server(create_app(service), service, on_ready=ready.set, drain_s=drain_s)
    service.engine.on_dead = server.end
    service.engine.start()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        assert ready.wait(10)
        yield Live(service, server, root)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not end"


@dataclass(frozen=True)
class Scripted:
    """A live server with a scripted model behind it."""

    live: Live
    runner: ScriptedRunner
    adapter: ScriptedAdapter


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """`scripted(reply, step_s=…, adapter=…, **service options)` starts a server that gives that reply."""
    with ExitStack() as stack:

        def start(
            reply: str = "Hello there.",
            *,
            step_s: float = 0.0,
            drain_s: float = 0.5,
            adapter: ScriptedAdapter | None = None,
            **options: object,
        ) -> Scripted:
            adapter = adapter or ScriptedAdapter()
            runner = ScriptedRunner(adapter, reply, step_s=step_s)
            stack.callback(runner.release)
            service = scripted_service(runner, adapter, **options)  # type: ignore[arg-type]
            return Scripted(stack.enter_context(live(service, drain_s)), runner, adapter)

        yield start


@contextmanager
def live_checkpoint(path: Path, max_model_len: int = 512) -> Iterator[Live]:
    """A live server on a checkpoint, loaded as `serve` loads it; its model is called `tiny`."""
    config = EngineConfig(
        model=str(path), served_model_name="tiny", device="cpu", max_model_len=max_model_len, quantization="none"
    )
    with live(build_service(config, str(path), lambda line: None)) as server:
        yield server


@pytest.fixture(scope="session")
def llama(checkpoint: Callable[[str], Path]) -> Iterator[Live]:
    """A tiny random text model."""
    with live_checkpoint(checkpoint("llama")) as server:
        yield server


@pytest.fixture(scope="session")
def vision(checkpoint: Callable[[str], Path]) -> Iterator[Live]:
    """A tiny random vision-language model, of the demo model's family."""
    with live_checkpoint(checkpoint("fast_vlm")) as server:
        yield server

"""While a model loads, the port says so: what the start is doing, and for how long, to people and to programs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from openai import InternalServerError, OpenAI

from backend.server.waiting_room import WaitingRoom
from backend.startup import Phase, Startup
from tests.api.test_serve import process
from tests.cameras.fixtures import free_port


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_whoever_comes_is_told_the_phase_and_how_long_it_takes(listener: socket.socket) -> None:
    now = 100.0
    startup = Startup(lambda line: None, lambda: now)
    startup.enter(Phase.WEIGHTS)
    now = 103.0
    startup.enter(Phase.KERNELS)
    startup.say("Kernels are compiled once …")
    now = 110.5
    with WaitingRoom(listener, startup, print):
        reply = httpx.get(f"{url_of(listener)}/ready")
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "2"
        told = reply.json()
        message = told.pop("error")["message"]
        assert told == {
            "status": "loading",
            "phase": "preparing compiled kernels",
            "detail": "Kernels are compiled once …",
            "phase_s": 7.5,
            "elapsed_s": 10.5,
        }
        assert "preparing compiled kernels, 10 s since the start" in message
        client = OpenAI(base_url=f"{url_of(listener)}/v1", api_key="none", max_retries=0)
        picture = "data:image/png;base64," + "A" * 3_000_000  # nobody reads it, and the answer comes all the same
        with pytest.raises(InternalServerError, match="the model is being loaded"):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": picture}])


def test_a_new_phase_forgets_the_line_of_the_last_one() -> None:
    lines: list[str] = []
    startup = Startup(lines.append)
    startup.say("Loading demo …")
    assert startup.progress().detail == "Loading demo …"
    startup.enter(Phase.WARM_UP)
    assert (startup.progress().phase, startup.progress().detail) == (Phase.WARM_UP, "")
    assert lines == ["Loading demo …"]


def test_the_socket_is_left_open_for_who_comes_next(listener: socket.socket) -> None:
    with WaitingRoom(listener, Startup(print), print), socket.create_connection(listener.getsockname()):
        pass  # a client that says nothing holds nobody up
    with socket.create_connection(listener.getsockname()):
        listener.settimeout(5)
        accepted, _ = listener.accept()
        accepted.close()


def test_whoever_is_there_when_the_room_closes_is_let_go_without_a_word(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.create_connection(listener.getsockname(), timeout=5) as silent,
        socket.create_connection(listener.getsockname(), timeout=5) as told,
    ):
        with WaitingRoom(listener, Startup(print), print):
            told.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            answer = told.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            silent.sendall(b"GET ")  # came first, so it has been received as well
        for client in (silent, told):
            while client.recv(65_536):
                pass
    assert caplog.messages == []


def test_a_long_phase_is_told_of_again(listener: socket.socket) -> None:
    lines: list[str] = []
    with WaitingRoom(listener, Startup(print), lines.append, remind_s=0.05):
        deadline = time.monotonic() + 20
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(lines) >= 2
    assert lines[0].startswith("Still loading libraries: ")
    assert lines[0].endswith(" s since the start")


def test_a_real_start_is_followed_until_it_is_ready(checkpoint: Callable[[str], Path]) -> None:
    port, seen, status = free_port(), [], 503
    flags = ("--model", str(checkpoint("llama")), "--port", str(port), "--device", "cpu", "--quantization", "none")
    with process(*flags) as server, httpx.Client(timeout=30) as client:
        server.wait_for("Threads:")
        deadline = time.monotonic() + 120
        while status != 200 and time.monotonic() < deadline:
            time.sleep(0.05)  # whoever asks all the time takes the cores that the start needs
            try:
                reply = client.get(f"http://127.0.0.1:{port}/ready")
            except httpx.TransportError:  # not there yet, or the moment in which the server takes over
                continue
            status = reply.status_code
            seen.append(reply.json())
        server.wait_for("Ready ")
        server.wait_for("Serving llama at ")
    assert seen[-1] == {"status": "ready"}
    phases = list(dict.fromkeys(told["phase"] for told in seen[:-1]))
    assert phases == [phase.value for phase in Phase if phase.value in phases]
    assert {"loading libraries", "loading the weights"} <= set(phases)
    elapsed = [told["elapsed_s"] for told in seen[:-1]]
    assert elapsed == sorted(elapsed)

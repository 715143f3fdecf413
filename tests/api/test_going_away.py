"""Clients that leave, engines that die, servers that are told to stop: nothing is left running, nobody left waiting."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from backend.engine import EngineState
from tests.api.conftest import Scripted

HI: list[Any] = [{"role": "user", "content": "hi"}]
LONG = {"model": "scripted", "messages": HI, "ignore_eos": True, "max_tokens": 250}
Start = Callable[..., Scripted]
PATH = "/v1/chat/completions"


def cancelled_within_a_step(rig: Scripted) -> int:
    """Wait for the cancel; the blocks are free then and no further step comes. The number of steps there were."""
    engine = rig.live.service.engine
    cancelled = 'request_success_total{finished_reason="cancelled"} 1.0'
    rig.live.wait_until(lambda: cancelled in engine.metrics.render().decode(), timeout_s=5)
    num_steps = len(rig.runner.steps)
    rig.live.wait_until(lambda: engine.stats().num_running == 0, timeout_s=0.1)
    assert engine.stats().num_blocks_used == 0
    time.sleep(0.05)
    assert len(rig.runner.steps) == num_steps
    return num_steps


def test_a_client_that_leaves_a_stream_takes_its_request_along(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "stream": True}) as reply:
        lines = reply.iter_lines()
        while "content" not in next(lines):
            pass
    assert cancelled_within_a_step(rig) < 200


def test_a_client_that_leaves_before_its_whole_reply_does_too(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    with rig.live.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post(PATH, json=LONG, timeout=0.3)
    assert cancelled_within_a_step(rig) < 200


@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("PATCH", "/engine/config")])
def test_a_client_that_leaves_while_it_sends_is_no_news(
    scripted: Start, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    caplog.set_level(logging.INFO)
    rig = scripted("abcdef")
    host, port = rig.live.root.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.1)
    with rig.live.http() as http:
        assert http.post(PATH, json={"model": "scripted", "messages": HI}).status_code == 200
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_client_that_leaves_while_its_request_is_prepared_frees_its_place(
    scripted: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scripted("abcdef")
    may_go_on, seen = threading.Event(), []
    prepare = rig.adapter.prepare

    def slowly(messages: Any, images: Any, tools: Any) -> Any:
        seen.append(messages[0]["content"])
        assert may_go_on.wait(30)
        return prepare(messages, images, tools)

    monkeypatch.setattr(rig.adapter, "prepare", slowly)
    with rig.live.http() as http:
        for words in ("first", "second", "third", "fourth"):
            body = {**LONG, "messages": [{"role": "user", "content": words}]}
            with pytest.raises(httpx.ReadTimeout):
                http.post(PATH, json=body, timeout=0.2)
    time.sleep(0.1)
    may_go_on.set()
    with rig.live.http() as http:
        assert http.post(PATH, json={"model": "scripted", "messages": HI}).status_code == 200
    assert seen == ["first", "second", "hi"], "what waited when its client left is never prepared"
    assert len({chunk.request_id for step in rig.runner.steps for chunk in step.chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_during_a_long_step_does_too(scripted: Start, stream: bool) -> None:
    rig = scripted("abcdef")
    rig.runner.hold()
    with rig.live.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post(PATH, json={**LONG, "stream": stream}, timeout=0.3)
    rig.live.wait_until(lambda: len(rig.live.service.engine._inbox) == 1)
    rig.runner.release()
    assert cancelled_within_a_step(rig) == 1


def test_a_slow_reader_holds_nobody(scripted: Start) -> None:
    rig = scripted("abcdef")
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "stream": True}) as slow:
        reply = rig.live.openai().chat.completions.create(model="scripted", messages=HI)
        assert reply.choices[0].message.content == "abcdef"
        rig.live.wait_until(lambda: rig.live.service.engine.stats().num_running == 0)
        slow.read()
        text = "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in slow.text.split("\n\n")
            if line.startswith("data: {")
        )
    assert text.startswith("abcdefabcdef")
    assert slow.text.rstrip().endswith("[DONE]")


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_answers_whoever_waits_and_ends_the_server(scripted: Start, stream: bool) -> None:
    rig = scripted("abcdef")
    rig.runner.fail_with = RuntimeError("boom")
    client = rig.live.openai()
    if stream:
        with pytest.raises(openai.APIError, match="RuntimeError"):
            list(client.chat.completions.create(model="scripted", messages=HI, stream=True))
    else:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="scripted", messages=HI)
        assert caught.value.status_code == 503
        assert caught.value.code == "engine_dead"
    rig.live.wait_until(lambda: rig.live.server.has_died)


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "stream": True}) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        while "content" not in next(lines):
            pass
        rig.runner.fail_requests = "its logits are not numbers"
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"] == {
        "message": "its logits are not numbers",
        "type": "server_error",
        "param": None,
        "code": "generation_failed",
    }
    assert "[DONE]" not in "".join(rest)


def test_health_and_new_requests_while_the_engine_is_dead(scripted: Start) -> None:
    rig = scripted("abcdef")
    rig.live.service.engine.on_dead = None
    rig.runner.fail_with = RuntimeError("boom")
    with rig.live.http() as http:
        assert http.get("/health").json() == {"status": "ok"}
        assert http.post(PATH, json=LONG).status_code == 503
        health = http.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "dead"})
        assert http.post(PATH, json=LONG).json()["error"]["code"] == "engine_dead"


def test_a_server_that_stops_ends_its_streams_with_a_word(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01)
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "stream": True}) as reply:
        lines = reply.iter_lines()
        while "content" not in next(lines):
            pass
        t_begin = time.monotonic()
        rig.live.server.should_exit = True
        rest = [line for line in lines if line]
    assert time.monotonic() - t_begin < 4
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "cancelled"


def test_a_drain_lets_running_answers_end_and_turns_new_ones_away(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01, drain_s=20.0)
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "max_tokens": 60, "stream": True}) as reply:
        lines = reply.iter_lines()
        while "content" not in next(lines):
            pass
        rig.live.server.should_exit = True
        rig.live.wait_until(lambda: rig.live.service.engine.state is not EngineState.RUNNING)
        with rig.live.http() as other:
            refused = other.post(PATH, json={"model": "scripted", "messages": HI})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["retry-after"] == "1"
            assert other.get("/health").status_code == 503
            assert other.get("/ready").json() == {"status": "draining"}
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]


def test_a_second_signal_ends_the_drain(scripted: Start) -> None:
    rig = scripted("abcdef", step_s=0.01, drain_s=600.0)
    with rig.live.http() as http, http.stream("POST", PATH, json={**LONG, "stream": True}) as reply:
        lines = reply.iter_lines()
        while "content" not in next(lines):
            pass
        for _ in range(2):
            rig.live.server.handle_exit(signal.SIGTERM, None)
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "cancelled"

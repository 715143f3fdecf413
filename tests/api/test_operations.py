"""What whoever runs the server sees of it: readiness, request ids, log lines, step composition, a full queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from backend.types.scheduler import SchedulerStats
from tests.api.conftest import Scripted
from tests.api.scripted import scripted_limits
from tests.api.test_images import data_uri

Start = Callable[..., Scripted]
PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


def test_ready_says_why_not(scripted: Start) -> None:
    rig = scripted("Hey", limits=scripted_limits(max_num_seqs=1, max_num_waiting=1), api_key="open sesame")
    key = {"Authorization": "Bearer open sesame"}
    with rig.live.http() as http:
        assert (http.get("/ready").status_code, http.get("/ready").json()) == (200, {"status": "ready"})
        rig.runner.hold()
        asking = [threading.Thread(target=rig.live.openai("open sesame").chat.completions.create, kwargs=BODY)]
        asking[0].start()
        engine = rig.live.service.engine
        rig.live.wait_until(lambda: len(engine._waiters) == 1 and not engine._inbox)
        for _ in range(2):
            asking.append(
                threading.Thread(target=lambda: rig.live.http().post(PATH, json=BODY, headers=key), daemon=True)
            )
            asking[-1].start()
        rig.live.wait_until(lambda: len(engine._waiters) == 3)
        rig.runner.release()
        for thread in asking:
            thread.join(20)
        assert http.get("/ready").status_code == 200
        engine._loop.stats = SchedulerStats(1, 1, 0, 1, 0, 1, 0, 0, 0)
        full = http.get("/ready")
        assert (full.status_code, full.json()) == (503, {"status": "queue full"})
        assert http.get("/health").status_code == 200


def test_a_request_keeps_the_name_its_client_gave_it(scripted: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="watchword.server")
    live = scripted("Hey").live

    def lines_of() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("yard-7 chatcmpl-")]

    with live.http() as http:
        for stream in (False, True):
            reply = http.post(PATH, json=BODY | {"stream": stream}, headers={"X-Request-Id": "yard-7"})
            assert reply.headers["x-request-id"] == "yard-7"
    live.wait_until(lambda: len(lines_of()) == 2)
    lines = lines_of()
    assert all("prompt_tokens=3 completion_tokens=3 images=0" in line and "total_s=" in line for line in lines)


@pytest.mark.parametrize("name", ["", "two words", "x" * 129, "caf\u00e9"])
def test_a_name_that_could_break_a_log_is_replaced(scripted: Start, name: str) -> None:
    with scripted("Hey").live.http() as http:
        reply = http.get("/v1/models", headers={b"X-Request-Id": name.encode()})
        other = http.get("/v1/models")
    assert reply.headers["x-request-id"] not in (name, other.headers["x-request-id"])
    assert len(reply.headers["x-request-id"]) == 32


def test_refusals_are_logged_by_id_without_content(scripted: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="watchword.server")
    with scripted("Hey", api_key="open sesame").live.http() as http:
        refused = http.post(PATH + "?q=secret", json=BODY, headers={"X-Request-Id": "a1"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (401, "a1")
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a1 ")]
    assert f"POST '{PATH}' status=401" in line
    assert "secret" not in line


def test_metrics_tell_what_steps_are_made_of(scripted: Start) -> None:
    rig = scripted("abc")
    parts = [{"type": "image_url", "image_url": {"url": data_uri("red")}}, {"type": "text", "text": "?"}]
    with rig.live.http() as http:
        body = BODY | {"messages": [{"role": "user", "content": parts}]}
        assert http.post(PATH, json=body, headers={"X-Request-Class": "background"}).status_code == 200
        metrics = http.get("/metrics").text
    for line in (
        'watchword_step_tokens_total{kind="prefill"} 6.0',
        'watchword_step_tokens_total{kind="decode"} 3.0',
        "watchword_encoder_slices_total 2.0",
        "watchword_prompt_tokens_total 6.0",
        "watchword_generation_tokens_total 3.0",
        'watchword_request_success_total{finished_reason="stop"} 1.0',
        'watchword_time_to_first_token_seconds_count{request_class="background"} 1.0',
        'watchword_e2e_request_latency_seconds_count{request_class="background"} 1.0',
    ):
        assert f"\n{line}\n" in metrics, line


def test_the_document_describes_every_body(scripted: Start) -> None:
    with scripted("Hey").live.http() as http:
        document = http.get("/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/tokenize", "/detokenize"):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        fields = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["properties"]
        assert fields["model"]["enum"] == ["scripted"], path
    kinds = document["components"]["schemas"]["ResponsesRequest"]["properties"]["input"]["anyOf"]
    assert {kind["type"] for kind in kinds} == {"string", "array"}

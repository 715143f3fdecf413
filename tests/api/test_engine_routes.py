"""What the server offers beside the OpenAI API, the API key, and the list of models."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import openai
import pytest

from backend.step_ring import StepRing
from tests.api.conftest import Live, Scripted
from tests.api.scripted import scripted_limits

HI: list[Any] = [{"role": "user", "content": "hi"}]
Start = Callable[..., Scripted]


def ask(live: Live, prompt: str = "hi") -> None:
    messages: Any = [{"role": "user", "content": prompt}]
    live.openai().chat.completions.create(model="scripted", messages=messages)


def test_models(scripted: Start) -> None:
    client = scripted().live.openai()
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("scripted", "model", "watchword")
    assert model.model_extra
    assert model.model_extra["max_model_len"] == 256
    assert client.models.retrieve("scripted").id == "scripted"


def test_steps_and_their_paging(scripted: Start) -> None:
    live = scripted("abc").live
    ask(live, "x" * 100)
    with live.http() as http:
        body = http.get("/engine/steps").json()
        steps = body.pop("steps")
        assert body == {
            "max_num_batched_tokens": 64,
            "is_budget_exact": True,
            "max_num_seqs": 8,
            "hard_num_batched_tokens": 256,
            "step_policy": "stall-free",
            "step_policies": ["stall-free", "prefill-first", "split-fuse", "latency-target"],
            "target_itl_ms": None,
            "step_token_budget": 64,
        }
        assert http.get("/engine/config").json() == body
        assert [s["step_id"] for s in steps] == list(range(len(steps)))
        assert [(s["prefill_tokens"], s["decode_tokens"]) for s in steps[:3]] == [(64, 0), (37, 0), (0, 1)]
        assert all(s["elapsed_ms"] >= 0 and s["encoder_slices"] == 0 for s in steps)
        assert all(a["t_mono"] < b["t_mono"] for a, b in itertools.pairwise(steps))
        assert http.get("/engine/steps", params={"since": 1, "limit": 2}).json()["steps"] == steps[2:4]
        assert http.get("/engine/steps", params={"limit": 2}).json()["steps"] == steps[-2:]
        assert http.get("/engine/steps", params={"since": 99}).json()["steps"] == []
        wrong = http.get("/engine/steps", params={"since": "x"})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "since"


def test_guesses_are_counted_and_change_no_word(scripted: Start) -> None:
    """An answer that repeats itself, from a machine whose steps cost the same whatever is in them."""
    words = "row, row, row, row, row, row, row, row, row, row, row, row, row your boat"
    live = scripted(words, step_s=0.005, limits=scripted_limits(num_speculative_tokens=4)).live
    reply = live.openai().chat.completions.create(model="scripted", messages=HI)
    assert reply.choices[0].message.content == words
    assert reply.usage
    assert reply.usage.completion_tokens == len(words)
    with live.http() as http:
        steps, metrics = http.get("/engine/steps").json()["steps"], http.get("/metrics").text
    drafts, accepted = (sum(step[f"{kind}_tokens"] for step in steps) for kind in ("draft", "accepted"))
    assert drafts >= accepted >= 20
    assert len(steps) <= len(words) + 2 - accepted
    assert all(step["decode_tokens"] == 1 + step["draft_tokens"] for step in steps if step["draft_tokens"])
    assert f"watchword_spec_decode_num_draft_tokens_total {drafts}.0" in metrics
    assert f"watchword_spec_decode_num_accepted_tokens_total {accepted}.0" in metrics
    assert f"watchword_generation_tokens_total {len(words)}.0" in metrics


def test_the_budget_is_felt_at_once(scripted: Start) -> None:
    rig = scripted("abc")
    with rig.live.http() as http:
        reply = http.patch("/engine/config", json={"max_num_batched_tokens": 16})
        assert reply.json()["max_num_batched_tokens"] == 16
        ask(rig.live, "x" * 100)
        assert max(s["prefill_tokens"] for s in http.get("/engine/steps").json()["steps"]) == 16
        assert reply.json()["is_budget_exact"]
        auto = http.patch("/engine/config", json={"max_num_batched_tokens": "auto"}).json()
        assert (auto["max_num_batched_tokens"], auto["is_budget_exact"]) == (64, False)


def test_the_policy_is_switched_while_it_runs_and_keeps_what_was_learned(scripted: Start) -> None:
    rig = scripted("abc", step_s=0.004)
    with rig.live.http() as http:
        for _ in range(3):
            ask(rig.live, "x" * 100)
        switched = http.patch("/engine/config", json={"step_policy": "latency-target", "max_num_batched_tokens": 32})
        assert (switched.status_code, switched.json()["step_policy"]) == (200, "latency-target")
        default_ms = switched.json()["target_itl_ms"]
        assert 2 * 4 <= default_ms < 2 * 40, "twice the step that was measured"
        too_short = http.patch("/engine/config", json={"target_itl_ms": 0.5, "max_num_batched_tokens": 64})
        assert too_short.status_code == 400
        assert "a bare decode step takes" in too_short.json()["error"]["message"]
        now = http.get("/engine/config").json()
        assert (now["target_itl_ms"], now["max_num_batched_tokens"]) == (default_ms, 32), "all of a change or none"
        assert http.patch("/engine/config", json={"target_itl_ms": 200}).json()["target_itl_ms"] == 200
        ask(rig.live, "y" * 100)
        assert http.get("/engine/config").json()["step_token_budget"] > 64, "200 ms hold more than a budget of 32"
        back = http.patch("/engine/config", json={"step_policy": "split-fuse"}).json()
        assert (back["step_policy"], back["target_itl_ms"]) == ("split-fuse", None)
        ask(rig.live, "z" * 100)
        assert http.get("/engine/config").json()["step_token_budget"] == 32


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"step_policy": "fifo"}, "stall-free, prefill-first, split-fuse, latency-target"),
        ({"step_policy": 1}, "a name"),
        ({"target_itl_ms": 50}, "latency-target, not for stall-free"),
        ({"step_policy": "prefill-first", "target_itl_ms": 50}, "latency-target, not for prefill-first"),
        ({"step_policy": "latency-target", "target_itl_ms": 0}, "above 0"),
        ({"step_policy": "latency-target", "max_num_batched_tokens": 7}, "max_num_seqs (8)"),
    ],
)
def test_a_policy_or_target_that_cannot_be_is_a_400_and_changes_nothing(scripted: Start, body: Any, words: str) -> None:
    with scripted().live.http() as http:
        before = http.get("/engine/config").json()
        reply = http.patch("/engine/config", json=body)
        assert reply.status_code == 400
        assert words in reply.json()["error"]["message"]
        assert http.get("/engine/config").json() == before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_num_batched_tokens": 7}, "max_num_seqs (8)"),
        ({"max_num_batched_tokens": 257}, "256"),
        ({"max_num_batched_tokens": "16"}, "whole number"),
        ({}, "whole number"),
        ({"max_num_seqs": 4}, "whole number"),
    ],
)
def test_a_budget_out_of_bounds_is_a_400_that_names_the_limit(scripted: Start, body: Any, words: str) -> None:
    with scripted().live.http() as http:
        reply = http.patch("/engine/config", json=body)
        assert reply.status_code == 400
        assert words in reply.json()["error"]["message"]
        assert http.get("/engine/steps").json()["max_num_batched_tokens"] == 64


def test_metrics(scripted: Start) -> None:
    live = scripted("abc").live
    ask(live)
    with live.http() as http:
        reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket",
        "request_inference_time_seconds_bucket",
        "iteration_tokens_total_bucket",
    ):
        assert f"\nwatchword_{name}" in reply.text, name


def test_the_api_key_guards_everything_but_health(scripted: Start) -> None:
    live = scripted("abc", api_key="open sesame").live
    with live.http() as http:
        assert http.get("/health").status_code == 200
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/metrics"),
            ("GET", "/engine/steps"),
            ("PATCH", "/engine/config"),
            ("GET", "/nothing"),
        ):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "open sesame"}):
                reply = http.request(method, path, headers=headers)
                assert reply.status_code == 401, (method, path, headers)
                assert reply.json()["error"]["code"] == "invalid_api_key"
                assert "sesame" not in reply.text
    reply = live.openai(api_key="open sesame").chat.completions.create(model="scripted", messages=HI)
    assert reply.choices[0].message.content == "abc"
    with pytest.raises(openai.AuthenticationError):
        live.openai(api_key="wrong").models.list()


def test_steps_are_written_beside_the_event_loop(scripted: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply of thousands of them would hold every stream up."""
    since, loops = StepRing.since, []

    def looked(ring: StepRing, *arguments: Any) -> Any:
        loops.append(asyncio._get_running_loop())
        return since(ring, *arguments)

    monkeypatch.setattr(StepRing, "since", looked)
    with scripted("Hello.").live.http() as http:
        assert http.get("/engine/steps").status_code == 200
    assert loops == [None]

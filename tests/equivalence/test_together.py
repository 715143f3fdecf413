"""Images encoded as a batch, and decodes replayed from graphs: the tokens of transformers all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.selftest.drive import Outcome
from backend.selftest.prompts import Prompt, noise
from backend.types.scheduler import SchedulerLimits
from tests.equivalence.harness import (
    NUM_TOKENS,
    Adapters,
    Answers,
    assert_matches,
    generate,
    limits,
    prompts_of,
    request_of,
    tight_limits,
)
from tests.tape import TapeRecorder

CAMERAS = tuple(Prompt(f"camera {i}", (noise(20 + i, 96, 64), "Describe the image.")) for i in range(5))


def num_together(outcome: Outcome) -> int:
    return sum(len(encode.mates) for step in outcome.steps for encode in step.encodes if not encode.first_slice)


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        ("smolvlm", "stall-free"),
        ("smolvlm", "latency-target"),
        ("fast_vlm", "stall-free"),
        ("qwen3_vl", "stall-free"),
        ("gemma3", "split-fuse"),
    ],
)
def test_frames_of_several_cameras_in_one_batch(family: str, policy: str, adapter: Adapters) -> None:
    """One after the other, whatever came before: the oracle. Then all at once, then in a cache too small for all."""
    model = adapter(family)
    requests = [request_of(model, prompt) for prompt in CAMERAS]
    embeds = requests[0].prompt.images[0].num_embeds
    oracle = {
        request.request_id: generate(model, [request], limits()).tokens[request.request_id] for request in requests
    }
    assert len({tuple(tokens) for tokens in oracle.values()}) > 1, "frames that make a difference"
    for cache in (16 * embeds, 2 * embeds):
        bounds = limits(max_num_seqs=5, max_encoder_batch=4, encoder_cache_embeds=cache)
        outcome = generate(model, requests, bounds, policy=policy, mate_share=0.3)
        assert num_together(outcome), "no frame had company"
        assert outcome.tokens == oracle
    assert not num_together(generate(model, requests, replace(bounds, max_encoder_batch=1), policy=policy))


@pytest.mark.parametrize("family", ["llama", "qwen3_vl", "gemma3"])
def test_decodes_replayed_from_graphs(family: str, adapter: Adapters, expected: Answers) -> None:
    """Alone and together; joined by guesses, most of them wrong; preempted and resumed."""
    model, want = adapter(family), expected(family)
    requests = [request_of(model, prompt) for prompt in prompts_of(family)]
    truth = {name: answer.token_ids for name, answer in want.items()}
    cases: tuple[tuple[SchedulerLimits, dict[str, Any]], ...] = (
        (limits(), {}),
        (limits(), {"truth": truth}),
        (tight_limits(requests), {"arrivals": (0, 2, 5)}),
    )
    for bounds, options in cases:
        tape = TapeRecorder()
        outcome = generate(model, requests, bounds, recorder=tape, **options)
        assert_matches(want, outcome.tokens)
        assert tape.num_recorded > 3
        num_replays = tape.num_replays - tape.num_recorded  # each was tried once before
        assert num_replays >= NUM_TOKENS / 3, "hardly a step was replayed"

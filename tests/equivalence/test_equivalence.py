"""Chunked, batched, cached, preempted, reordered: whatever the engine does to a request, its tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.runtime.encoder_cache import EncoderCache
from backend.types.step import EncodeSlice
from tests.equivalence.harness import (
    ATOMIC_FAMILIES,
    FAMILIES,
    FRAMES,
    IMAGE_FAMILIES,
    IMAGE_PROMPTS,
    TEXT_MODELS,
    Adapters,
    Answers,
    Prompt,
    assert_matches,
    expected_of,
    generate,
    limits,
    picture,
    prompts_of,
    request_of,
    tight_limits,
)

WHOLE = 1024
VIDEO_FAMILIES = ("smolvlm", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "internvl")
"""Those taught on videos, too; SmolVLM2 is of the family `smolvlm`."""


@pytest.mark.parametrize("budget", [1, 7, 16, 64, WHOLE])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunked_equals_transformers(family: str, budget: int, adapter: Adapters, expected: Answers) -> None:
    """Chunks of at most `budget` tokens, prompts and decodes mixed, image borders anywhere.

    Only an image that cannot be split goes beyond the budget.
    """
    model = adapter(family)
    outcome = generate(model, [request_of(model, p) for p in prompts_of(family)], limits(budget))
    for step in outcome.steps:
        at_once = max((e.length for c in step.chunks for e in c.embeds if e.atomic), default=0)
        assert step.num_decode_tokens + step.num_prefill_tokens <= budget + at_once
    assert_matches(expected(family), outcome.tokens)


@pytest.mark.parametrize("family", [family for family in IMAGE_FAMILIES if family not in ATOMIC_FAMILIES])
def test_images_straddle_chunks_and_blocks(family: str, adapter: Adapters) -> None:
    """The premise of the tests above: with a budget of 7, chunks and blocks really do end inside images."""
    model = adapter(family)
    requests = [request_of(model, p) for p in IMAGE_PROMPTS]
    spans = [(r.request_id, span) for r in requests for span in r.prompt.spans]
    chunks = [c for step in generate(model, requests, limits(7)).steps for c in step.chunks]
    ends = {(c.request_id, c.start + c.num_tokens) for c in chunks}
    assert any((name, end) in ends for name, span in spans for end in range(span.start + 1, span.end))
    assert any(border % 4 == 0 for _, span in spans for border in range(span.start + 1, span.end))
    assert any(e.row > 0 for c in chunks for e in c.embeds)


@pytest.mark.parametrize("budget", [1, 7, 16])
@pytest.mark.parametrize("family", ATOMIC_FAMILIES)
def test_an_atomic_image_is_in_one_chunk(family: str, budget: int, adapter: Adapters) -> None:
    model = adapter(family)
    requests = [request_of(model, p) for p in IMAGE_PROMPTS]
    chunks = [c for step in generate(model, requests, limits(budget)).steps for c in step.chunks]
    for request in requests:
        for span in request.prompt.spans:
            own = [c for c in chunks if c.request_id == request.request_id and c.start < span.end]
            (whole,) = [c for c in own if c.start + c.num_tokens > span.start]
            assert whole.start <= span.start
            assert whole.start + whole.num_tokens >= span.end


@pytest.mark.parametrize("family", FAMILIES)
def test_batched_equals_alone(family: str, adapter: Adapters, expected: Answers) -> None:
    """Late arrivals join running decodes; alone, each request has the engine to itself."""
    model = adapter(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    together = generate(model, requests, limits(16), arrivals=(0, 3, 5, 9))
    assert any(s.num_decode_tokens and s.num_prefill_tokens for s in together.steps)
    alone = {r.request_id: generate(model, [r], limits(16)).tokens[r.request_id] for r in requests}
    assert_matches(expected(family), together.tokens)
    assert_matches(expected(family), alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_cache_changes_nothing(family: str, adapter: Adapters, expected: Answers) -> None:
    """Every prompt comes twice; the second time most of it is a hit."""
    model = adapter(family)
    prompts = prompts_of(family)
    requests = [request_of(model, p) for p in prompts] + [request_of(model, p, f"{p.name} again") for p in prompts]
    late = (0,) * len(prompts) + (400,) * len(prompts)
    outcome = generate(model, requests, limits(16, enable_prefix_caching=True), arrivals=late)
    answers = expected(family)
    assert_matches(answers, outcome.tokens)
    assert_matches({f"{name} again": answer for name, answer in answers.items()}, outcome.tokens)
    assert outcome.stats is not None
    assert outcome.stats.prefix_hits_total > 0.3 * outcome.stats.prefix_queries_total


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_equals_undisturbed(family: str, caching: bool, adapter: Adapters, expected: Answers) -> None:
    """A pool that holds all prompts but not all answers: some requests are thrown out and computed again."""
    model = adapter(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    outcome = generate(model, requests, tight_limits(requests, enable_prefix_caching=caching))
    assert outcome.stats is not None
    assert outcome.stats.num_preemptions_total > 0
    assert_matches(expected(family), outcome.tokens)


@pytest.mark.parametrize("family", TEXT_MODELS)
def test_reference_attention_gives_the_same_tokens(family: str, adapter: Adapters, expected: Answers) -> None:
    model = adapter(family)
    requests = [request_of(model, p) for p in prompts_of(family)]
    assert_matches(expected(family), generate(model, requests, limits(16), attention="reference").tokens)


@pytest.mark.parametrize("family", TEXT_MODELS)
def test_a_seeded_draw_is_independent_of_company_and_preemption(family: str, adapter: Adapters) -> None:
    model = adapter(family)
    drawing: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 11}
    requests = [request_of(model, p, **drawing) for p in prompts_of(family)]
    alone = {r.request_id: generate(model, [r], limits(64)).tokens[r.request_id] for r in requests}
    together = generate(model, requests, limits(7))
    thrown_out = generate(model, requests, tight_limits(requests))
    assert thrown_out.stats is not None
    assert thrown_out.stats.num_preemptions_total > 0
    assert together.tokens == alone
    assert thrown_out.tokens == alone
    drawing["seed"] = 12
    other = [request_of(model, p, **drawing) for p in prompts_of(family)]
    assert generate(model, other, limits(64)).tokens != alone


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_two_images_never_share_what_comes_after_the_image(family: str, adapter: Adapters) -> None:
    """Same words, same placeholders, other pixels: KV is shared up to the image and not one token further."""
    model = adapter(family)
    text = "A camera that puts what it watches into words. "
    one, two = (Prompt(str(seed), (text, picture(seed, 64, 64), "What do you see?")) for seed in (21, 22))
    first, second = request_of(model, one), request_of(model, two)
    assert first.prompt.token_ids == second.prompt.token_ids
    caching = limits(16, enable_prefix_caching=True)
    cached = generate(model, [first, second], caching, arrivals=(0, 200))
    apart = {r.request_id: generate(model, [r], limits(16)).tokens[r.request_id] for r in (first, second)}
    assert cached.tokens == apart
    assert apart["21"] != apart["22"], "the images must matter for this test to mean anything"
    computed = min(c.start for step in cached.steps for c in step.chunks if c.request_id == "22")
    image_start = first.prompt.spans[0].start
    assert 0 < computed <= image_start
    assert computed > image_start - caching.block_size, "all whole blocks before the image are shared"


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_an_equal_image_is_encoded_once(family: str, adapter: Adapters) -> None:
    model = adapter(family)
    prompts = [Prompt(f"p{i}", (f"Question {i}: ", picture(31, 80, 60), "what is this?")) for i in range(3)]
    outcome = generate(model, [request_of(model, p) for p in prompts], limits(16), arrivals=(0, 5, 60))
    assert outcome.num_encodings == 1


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_frames_of_a_video_are_pictures(family: str, adapter: Adapters, checkpoint: Callable[[str], Path]) -> None:
    model = adapter(family)
    outcome = generate(model, [request_of(model, FRAMES)], limits(16))
    assert outcome.num_encodings == 3
    assert_matches(expected_of(checkpoint(family), (FRAMES,)), outcome.tokens)


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_rows_take_the_bytes_that_the_cache_counts(family: str, adapter: Adapters) -> None:
    """Rows for deeper layers, and whatever storage a row is a view of, included."""
    model = adapter(family)
    (image,) = request_of(model, Prompt("one", (picture(41, 70, 50), "?"))).prompt.images
    encoders = EncoderCache(model)
    with torch.inference_mode():
        encoders.advance(EncodeSlice(image, 0, image.num_slices))
    rows = encoders.find_rows(image.key)
    assert rows is not None
    row_bytes = model.spec.image_row_size * model.dtype.itemsize
    assert rows.untyped_storage().nbytes() <= image.num_embeds * row_bytes


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
def test_an_encoder_cache_of_one_image_is_enough(family: str, adapter: Adapters, expected: Answers) -> None:
    """Images push one another out, are begun again, and the answers stay what they were."""
    model = adapter(family)
    requests = [request_of(model, p) for p in IMAGE_PROMPTS]
    largest = max(image.num_embeds for r in requests for image in r.prompt.images)
    outcome = generate(model, requests, limits(16, encoder_cache_embeds=largest))
    assert any(step.evictions for step in outcome.steps)
    assert_matches(expected(family), outcome.tokens)

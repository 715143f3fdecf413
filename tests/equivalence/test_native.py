"""The equivalence suite once more, with the text model computed by compiled loops in float32; then its own faults."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from backend.models.registry import load
from backend.runtime import runner
from backend.runtime.batch import StepTensors, build_step_tensors
from backend.runtime.native.compiler import find_native_obstacle
from backend.runtime.native.weights import FAMILIES as COMPILED
from backend.types.step import Chunk
from tests.checkpoints import TEXT_SHAPE, build_tokenizer
from tests.equivalence import harness
from tests.equivalence.harness import (
    TEXT_PROMPTS,
    Adapters,
    Answers,
    assert_matches,
    expected_of,
    generate,
    limits,
    prompts_of,
    request_of,
)
from tests.equivalence.test_equivalence import (  # noqa: F401  (collected here, and so run on the compiled loops)
    test_a_seeded_draw_is_independent_of_company_and_preemption,
    test_batched_equals_alone,
    test_chunked_equals_transformers,
    test_preempted_equals_undisturbed,
    test_prefix_cache_changes_nothing,
)
from tests.equivalence.test_mutants import FAULTS_IN_TENSORS, Fault
from tests.equivalence.test_speculation import (  # noqa: F401  (as above)
    test_guessed_and_preempted,
    test_guessed_draws_are_the_same_draws,
)
from tests.weights import randomize


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(harness, "build_runner", partial(runner.build_runner, text="native"))


SPECIALITIES: dict[str, dict[str, Any]] = {
    "llama": {
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 40,
        "num_key_value_heads": 1,
    },
    "mistral": {"sliding_window": 24},
    "qwen2": {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1},
    "qwen3": {"head_dim": 32, "intermediate_size": 104},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
}


@pytest.mark.parametrize("budget", [7, 64])
@pytest.mark.parametrize("family", sorted(COMPILED))
def test_family_equals_transformers(family: str, budget: int, tmp_path: Path) -> None:
    """Biases, head sizes that fill no vector, windows, layers without positions."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    shape = TEXT_SHAPE | {"vocab_size": len(tokenizer), "pad_token_id": 0} | SPECIALITIES[family]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    randomize(model, seed=7)
    model.save_pretrained(tmp_path)
    adapter = load(str(tmp_path), device="cpu", dtype="float32")
    assert find_native_obstacle(adapter.text_parts(), int8=False) is None
    prompts = TEXT_PROMPTS[1:3]
    outcome = generate(adapter, [request_of(adapter, p) for p in prompts], limits(budget))
    assert_matches(expected_of(tmp_path, prompts), outcome.tokens)


@pytest.mark.parametrize("fault", FAULTS_IN_TENSORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("budget", [3, 16])
def test_a_fault_in_the_step_is_seen(
    fault: Fault, budget: int, adapter: Adapters, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows by themselves (budget 3) and chunks in tiles (16)."""

    def faulty(chunks: Sequence[Chunk], **options: Any) -> StepTensors:
        return fault(build_step_tensors(chunks, **options))

    monkeypatch.setattr(runner, "build_step_tensors", faulty)
    model = adapter("llama")
    outcome = generate(model, [request_of(model, p) for p in prompts_of("llama")], limits(budget))
    with pytest.raises(AssertionError, match="diverges"):
        assert_matches(expected("llama"), outcome.tokens)


@pytest.mark.parametrize("text", ["native-int8", "native-int4"])
@pytest.mark.parametrize("family", ["llama", "smolvlm"])
def test_whole_numbers_do_not_depend_on_company(
    family: str, text: str, adapter: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is quantised by itself and summed in one order.

    Chunks below 8 tokens, which attend like decoding rows: a longer one sums its scores in another order, and rounding
    to int8 can make a last digit matter where two tokens are nearly tied.
    """
    model = adapter(family)
    obstacle = find_native_obstacle(model.text_parts(), int8=True)
    if obstacle is not None:
        pytest.skip(obstacle)
    monkeypatch.setattr(harness, "build_runner", partial(runner.build_runner, text=text))
    requests = [request_of(model, p) for p in prompts_of(family)]
    alone = {r.request_id: generate(model, [r], limits(7)).tokens[r.request_id] for r in requests}
    assert generate(model, requests, limits(7), arrivals=(0, 3, 5, 9)).tokens == alone
    assert generate(model, requests, limits(3)).tokens == alone
    assert generate(model, requests, limits(7), truth=alone).tokens == alone, "guesses attend as decoding rows do"

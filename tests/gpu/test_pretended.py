"""The paths of a GPU on one that is pretended: no operation on both sides, no wait but for the ids, the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention

from backend.config import EngineConfig
from backend.models.adapter import encoded
from backend.models.registry import load
from backend.runtime import graphs
from backend.runtime.attention import flex
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.attention.sdpa import SdpaAttention
from backend.runtime.batch import build_step_tensors
from backend.runtime.image_batches import largest_batch
from backend.runtime.kv_pool import KvPool
from backend.runtime.native.weights import find_obstacle
from backend.runtime.runner import build_runner
from backend.selftest.drive import drive
from backend.service import build_service
from backend.types.request import SamplingParams
from backend.types.step import Chunk
from tests.equivalence.harness import Adapters, generate, limits, prompts_of, request_of
from tests.gpu.pretended import DeviceTensor, PretendedGpu, pretended_gpu
from tests.unit.runtime.chosen import choose
from tests.unit.runtime.test_choosing import Allow, chunk, logits_of

NUM_TOKENS = 6


@pytest.fixture(scope="module")
def adapter(checkpoint: Callable[[str], Path]) -> Adapters:
    """On the CPU, and before anything is pretended: transformers' modules keep what they find of torch at first."""
    return cache(lambda family: load(str(checkpoint(family)), device="cpu", dtype="float32"))


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of two sizes; and FlexAttention as it is, for nothing can be compiled for what is not there."""
    monkeypatch.setattr(graphs, "_ROWS", (1, 4))
    monkeypatch.setattr(graphs, "_KEYS", (1024,))
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def on_device(*values: float) -> torch.Tensor:
    return torch.tensor(values, pin_memory=True).to("cuda", non_blocking=True)


def mix() -> object:
    return on_device(1.0, 2.0) + torch.ones(2)


def mix_in_place() -> object:
    return on_device(1.0, 2.0).index_copy_(0, torch.tensor([0]), on_device(3.0))


def index_the_host() -> object:
    return torch.ones(2)[on_device(1.0).long()]


@pytest.mark.parametrize("work", [mix, mix_in_place, index_the_host])
def test_both_sides_in_one_operation_fail(work: Callable[[], object]) -> None:
    with pretended_gpu(), torch.inference_mode(), pytest.raises(RuntimeError, match=r"device"):
        work()


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "a number": lambda x: float(x.sum()),
    "numbers": lambda x: x.tolist(),
    "a condition": lambda x: bool((x > 0).any()),
    "places": lambda x: (x > 0).nonzero(),
    "a mask": lambda x: x[x > 0],
    "indices": lambda x: x[torch.tensor([0])],
    "pageable memory": lambda x: x.copy_(torch.ones(2), non_blocking=True),
    "a plain copy": lambda x: x.copy_(torch.ones(2).pin_memory()),
}


@pytest.mark.parametrize("work", WAITS.values(), ids=WAITS)
def test_waits_are_counted_and_cannot_be_recorded(work: Callable[[torch.Tensor], object]) -> None:
    with pretended_gpu() as gpu, torch.inference_mode():
        x = on_device(1.0, 2.0)
        assert not gpu.waits
        work(x)
        assert gpu.waits.total() == 1
        with pytest.raises(RuntimeError, match=r"not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            work(x)


def test_what_is_queued_is_no_wait() -> None:
    with pretended_gpu() as gpu, torch.inference_mode():
        x = on_device(1.0, 2.0)
        x[:1] = 3
        view = x[1:]
        view.add_(2 * x[:1] + torch.tensor(1.0))  # one number of the host's travels with the call
        assert isinstance(view, DeviceTensor)
        assert view.device.type == "cuda"
        assert not gpu.waits
        assert x.tolist() == [3.0, 9.0]


@pytest.mark.parametrize(
    ("family", "way"),
    [
        ("llama", "graphs"),
        ("llama", "flex"),
        ("qwen3_vl", "graphs"),
        ("qwen2_5_vl", "sdpa"),
        ("gemma3", "flex"),
        ("gemma3", "graphs"),
        ("smolvlm", "sdpa"),
        ("fast_vlm", "sdpa"),
    ],
)
def test_the_tokens_of_a_cpu_and_one_wait_a_step(
    family: str, way: str, adapter: Adapters, checkpoint: Callable[[str], Path]
) -> None:
    """From pixels to tokens: encoders, their cache, attention, graphs, the likeliest ids; and steps made ahead."""
    bounds = limits(max_encoder_batch=2)
    on_cpu = adapter(family)
    said: list[str] = []
    prompts = prompts_of(family)[:3]
    requests = [request_of(on_cpu, prompt, max_tokens=NUM_TOKENS) for prompt in prompts]
    expected = generate(on_cpu, requests, bounds)
    with pretended_gpu() as gpu:
        on_device = load(str(checkpoint(family)), device="cuda", dtype="float32")
        runner = build_runner(
            on_device,
            num_blocks=bounds.num_blocks,
            block_size=bounds.block_size,
            attention="sdpa" if way == "graphs" else way,
            recorder=graphs.CudaRecorder() if way == "graphs" else None,
            say=said.append,
        )
        requests = [request_of(on_device, prompt, max_tokens=NUM_TOKENS) for prompt in prompts]
        gpu.waits.clear()
        outcome = drive(on_device, runner, requests, bounds, ahead=True)
        num_waits, waits = gpu.waits.total(), dict(gpu.waits)
    assert outcome.tokens == expected.tokens
    assert outcome.num_ahead
    assert num_waits == len(outcome.steps), waits
    assert [line[:18] for line in said] == ["Decode graphs: 2, "] * (way == "graphs"), said


def test_every_way_to_choose_waits_once(pretended: PretendedGpu) -> None:
    """Draws, penalties, biases and grammars; log-probabilities come after the ids, with waits of their own."""
    chunks = [
        chunk("a", (1, 2), (3, 3), temperature=0.8, top_k=7, top_p=0.9, seed=4),
        chunk("b", (1, 2), (3, 3), repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
        chunk("c", (), (), logit_bias=((5, 4.0), (7, -50.0)), temperature=1.2, min_p=0.1),
        chunk("d", grammar=Allow(8, 9)),
        chunk("e", grammar=Allow(error=ValueError("no way on"))),
        chunk("f"),
    ]
    expected = choose(logits_of(6, len(chunks)), chunks, range(len(chunks)))
    logits = logits_of(6, len(chunks)).pin_memory().to("cuda", non_blocking=True)
    assert choose(logits, chunks, range(len(chunks))) == expected
    assert pretended.waits.total() == 1


@pytest.mark.parametrize("num_top", [0, 3, 50])
def test_log_probabilities_are_those_of_a_cpu(num_top: int, pretended: PretendedGpu) -> None:
    chunks = [chunk("a", num_logprobs=num_top), chunk("b"), chunk("c", logit_bias=((5, 4.0),), num_logprobs=2)]
    expected = choose(logits_of(2, 3), chunks, range(3))
    logits = logits_of(2, 3).pin_memory().to("cuda", non_blocking=True)
    assert choose(logits, chunks, range(3)) == expected


def test_spoiled_blocks_are_healed_where_they_are(pretended: PretendedGpu, checkpoint: Callable[[str], Path]) -> None:
    spec = load(str(checkpoint("llama")), device="cpu", dtype="float32").spec
    pool = KvPool(spec, num_blocks=4, block_size=4, dtype=torch.bfloat16, device=torch.device("cuda"))
    pool.fill_with_noise()
    pool.spoil((1, 2))
    params = SamplingParams(max_tokens=1)
    begun = Chunk("a", 4, (1, 2), (range(4, 6),), (0, 2), (), True, 0, params, is_decode=False)
    tensors = build_step_tensors([begun], block_size=4, num_position_rows=1, device=pool.device)
    pool.heal([begun])
    assert not pretended.waits
    assert tensors.attention.slots.tolist() == [8, 9]
    assert not pool.keys[:, 8:12].any().item()
    assert pool.keys[:, 4:8].all().item()


@pytest.mark.usefixtures("pretended")
def test_kernels_get_the_lengths_they_want(adapter: Adapters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are wrong in some releases, and slow in all, where keys end anywhere; some are made anew for each length."""
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", (switched := []).append)
    spec = adapter("llama").spec
    pool = KvPool(spec, num_blocks=8, block_size=16, dtype=torch.bfloat16, device=torch.device("cuda"))
    slots = torch.arange(40, device="cuda")
    inputs = AttentionInputs((0, 1, 9), (33, 40), ((0, 1, 2), (3, 4, 5)), slots)
    groups = SdpaAttention(pool).plan(inputs).groups
    assert switched == [False]
    assert [group.key_slots.shape[1] for group in groups] == [48, 48]
    assert [group.mask(None, torch.bfloat16).isfinite().sum(dim=-1).tolist() for group in groups] == [
        [list(range(33, 41))],
        [[33]],
    ]


def test_compiled_loops_are_not_for_a_model_on_a_device(adapter: Adapters, checkpoint: Callable[[str], Path]) -> None:
    adapter("llama")
    with pretended_gpu():
        on_device = load(str(checkpoint("llama")), device="cuda", dtype="float32")
        assert find_obstacle(on_device.text_parts()) == "the weights are not float32 on the CPU"


def test_a_service_starts(adapter: Adapters, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """From the probe to the first steps, all of which run before the engine has its thread."""
    adapter("smolvlm")
    said: list[str] = []
    config = EngineConfig(model="eyes", device="cuda", max_num_seqs=4, max_num_batched_tokens=64, cache_dir=tmp_path)
    with pretended_gpu(4 << 30):
        service = build_service(config, str(checkpoint("smolvlm")), said.append)
        service.close()
    assert "Images encoded together: up to 8" in said
    assert any(line.startswith("Decode graphs: 2, ") for line in said)
    assert "Computing on pretended GPU in bfloat16; warming up …" in said
    assert service.config.device == "cuda"
    assert service.config.kv_cache_memory_bytes == int(4 * 2**30 * 0.9) - 2**30


@pytest.mark.parametrize("family", ["smolvlm", "llava_onevision"])
def test_pictures_are_encoded_where_the_model_is(
    family: str, adapter: Adapters, checkpoint: Callable[[str], Path]
) -> None:
    adapter(family)
    said: list[str] = []
    with pretended_gpu():
        on_device = load(str(checkpoint(family)), device="cuda", dtype="float32")
        assert largest_batch(on_device, said.append, 2) == 2, said
        (picture,) = request_of(on_device, prompts_of(family)[1]).prompt.images
        with torch.inference_mode():
            rows = encoded(on_device.encode(picture))
        assert isinstance(rows, DeviceTensor)
        assert rows.shape == (picture.num_embeds, on_device.spec.image_row_size)


@pytest.fixture
def pretended() -> Iterator[PretendedGpu]:
    with pretended_gpu() as gpu, torch.inference_mode():
        yield gpu

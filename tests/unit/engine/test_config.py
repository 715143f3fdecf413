"""Settings: what is refused and in which words, what is decided for a machine, and what is never shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from backend.bounds import limits_of
from backend.config import GIB, EngineConfig
from backend.errors import ConfigError
from backend.hardware import Hardware, num_physical_cores, probe
from backend.models.adapter import ModelSpec
from backend.server.arguments import parse_args

CPU = Hardware("cpu", "CPU", 16 * GIB, 8 * GIB, 4)
GPU = Hardware("cuda", "GPU", 80 * GIB, 70 * GIB, 16)
SPEC = ModelSpec(
    family="llama",
    num_layers=2,
    num_kv_heads=2,
    head_dim=8,
    hidden_size=16,
    vocab_size=100,
    max_model_len=2048,
    num_position_rows=1,
    eos_token_ids=frozenset({0}),
    image_token_id=None,
    max_embeds_per_image=0,
)


def resolved(hardware: Hardware = CPU, **values: Any) -> EngineConfig:
    return EngineConfig.from_mapping(values).resolve(hardware, SPEC)


def test_defaults_of_a_cpu() -> None:
    config = resolved()
    assert (config.device, config.max_num_batched_tokens, config.max_num_seqs) == ("cpu", 64, 32)
    assert (config.max_model_len, config.kv_cache_memory_bytes) == (2048, GIB)
    assert config.served_model_name == "demo"


def test_defaults_of_a_gpu() -> None:
    config = resolved(GPU)
    assert (config.device, config.max_num_batched_tokens, config.max_num_seqs) == ("cuda", 2048, 256)
    assert config.kv_cache_memory_bytes == (72 - 10 - 1) * GIB
    with pytest.raises(ConfigError, match=r"--gpu-memory-utilization 0\.1"):
        resolved(GPU, gpu_memory_utilization=0.1)


def test_a_small_machine_gets_a_small_cache() -> None:
    assert resolved(dataclasses.replace(CPU, memory_total_bytes=2 * GIB)).kv_cache_memory_bytes == GIB // 4


def test_attention_that_needs_a_gpu_is_refused_without_one() -> None:
    assert resolved(CPU).attention_backend == resolved(GPU).attention_backend == "sdpa"
    assert resolved(GPU, attention_backend="flex").attention_backend == "flex"
    with pytest.raises(ConfigError, match="--attention-backend flex needs a GPU"):
        resolved(CPU, attention_backend="flex")


def test_what_is_set_stays_and_the_original_is_untouched() -> None:
    config = EngineConfig(max_num_seqs=4, max_model_len=100, kv_cache_memory_bytes=12345, served_model_name="m")
    other = config.resolve(CPU, SPEC)
    assert (other.max_num_seqs, other.max_model_len, other.kv_cache_memory_bytes) == (4, 100, 12345)
    assert other.served_model_name == "m"
    assert config.max_num_batched_tokens is None
    assert other.resolve(CPU, SPEC) == other


def test_a_small_budget_takes_fewer_sequences() -> None:
    assert resolved(max_num_batched_tokens=16).max_num_seqs == 16


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_num_seqs": 65}, "--max-num-batched-tokens 64 is less than --max-num-seqs 65"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "8 is less than --max-num-seqs 9"),
        ({"max_model_len": 2049}, "2048"),
        ({"max_num_batched_token": 8}, "did you mean max_num_batched_tokens?"),
        ({"zzz": 1}, "unknown setting 'zzz'"),
        ({"port": "80"}, "--port is '80'; it must be a whole number from 0 to 65535"),
        ({"port": True}, "--port is True"),
        ({"port": 65536}, "from 0 to 65535"),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0; it must be a whole number from 1 to 16384"),
        ({"max_num_seqs": 10**9}, "--max-num-seqs is 1000000000; it must be a whole number from 1 to 16384"),
        ({"max_model_len": 0}, "--max-model-len is 0; it must be a whole number of at least 1"),
        ({"kv_cache_memory_bytes": 17 * GIB}, f"is more than the {16 * GIB} bytes of memory here"),
        ({"max_num_seqs": 1.5}, "whole number"),
        ({"gpu_memory_utilization": float("nan")}, "from 0.05 to 1.0"),
        ({"gpu_memory_utilization": "most"}, "a number"),
        ({"enable_prefix_caching": 1}, "true or false"),
        ({"step_policy": "fifo"}, "one of stall-free, prefill-first, split-fuse, latency-target"),
        ({"target_itl_ms": 50.0}, "--target-itl-ms is for --step-policy latency-target, not for stall-free"),
        ({"step_policy": "latency-target", "target_itl_ms": 0}, "--target-itl-ms is 0; it must be a number from 0.1"),
        ({"step_policy": "latency-target", "target_itl_ms": float("nan")}, "--target-itl-ms is nan"),
        ({"device": None}, "one of auto, cpu, cuda"),
        ({"model": None}, "--model is None; it must be text"),
        ({"api_key": 5}, "--api-key is ***"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(**values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-num-seq", "4"], "unknown argument --max-num-seq (did you mean --max-num-seqs?)"),
        (["--max-num-seqs", "four"], "--max-num-seqs is 'four'; it must be a whole number"),
        (["--max-num-seqs"], "--max-num-seqs: expected one argument"),
        (["extra"], "unknown argument extra"),
    ],
)
def test_command_lines_that_cannot_be_meant(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_args(argv)
    assert words in str(caught.value)


def test_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHWORD_CACHE", "/var/cache/w")
    monkeypatch.setenv("WATCHWORD_API_KEY", "from outside")
    config = parse_args(["--model", "org/name", "--port", "0", "--no-enable-prefix-caching", "--max-num-seqs=4"])
    assert (config.model, config.port, config.max_num_seqs) == ("org/name", 0, 4)
    assert not config.enable_prefix_caching
    assert config.cache_dir == Path("/var/cache/w")
    assert config.api_key == "from outside"
    assert parse_args(["--api-key", "given"]).api_key == "given"


def test_the_key_is_never_shown() -> None:
    config = resolved(api_key="open sesame")
    assert "sesame" not in config.describe()
    assert "sesame" not in repr(config)
    assert "api_key=***" in config.describe()
    for field in dataclasses.fields(config):
        assert f"{field.name}=" in config.describe()


def test_every_setting_explains_itself() -> None:
    for field in dataclasses.fields(EngineConfig):
        assert len(field.metadata["help"]) > 10, field.name


def test_blocks_are_as_many_as_memory_holds_and_requests_can_use() -> None:
    block_bytes = 1000
    enough = limits_of(resolved(), SPEC, block_bytes, may_shrink=True)
    assert (enough.num_blocks, enough.max_model_len) == (128 * 32, 2048)
    tight = limits_of(resolved(kv_cache_memory_bytes=10_500), SPEC, block_bytes, may_shrink=True)
    assert (tight.num_blocks, tight.max_model_len) == (10, 160)
    with pytest.raises(ConfigError, match="2048 tokens of this model take 128000"):
        limits_of(resolved(kv_cache_memory_bytes=10_500), SPEC, block_bytes, may_shrink=False)
    with pytest.raises(ConfigError, match="16 tokens"):
        limits_of(resolved(kv_cache_memory_bytes=999), SPEC, block_bytes, may_shrink=True)


def test_the_hard_bound_holds_the_budget_and_the_largest_image() -> None:
    assert resolved().hard_num_batched_tokens(0) == 1024
    assert resolved(max_num_batched_tokens=5000).hard_num_batched_tokens(0) == 5000
    assert resolved().hard_num_batched_tokens(3000) == 3000 + 31, "an image beside 31 others"
    assert resolved(GPU).hard_num_batched_tokens(0) == 8192


def test_this_machine_can_be_read() -> None:
    hardware = probe("cpu")
    assert hardware.device == "cpu"
    assert 0 < hardware.memory_free_bytes <= hardware.memory_total_bytes
    assert hardware.num_physical_cores == num_physical_cores() >= 1

"""The engine's settings: one frozen value, one field per `watchword serve` flag, defaults resolved once.

Each field is a setting with its own help text and limits: the command line, the checks and the error messages are all
made from this one place. Knows nothing of torch, models or HTTP; `resolve` is given what it needs to know of both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.errors import ConfigError
from backend.setting import check_list, check_value, did_you_mean, setting

if TYPE_CHECKING:
    from backend.hardware import Hardware
    from backend.models.adapter import ModelSpec

MIB = 1 << 20
GIB = 1 << 30

CPU_TOKEN_BUDGET = 64
GPU_TOKEN_BUDGET = 2048
CPU_MAX_SEQS = 32
GPU_MAX_SEQS = 256
CPU_HARD_TOKENS = 1024
GPU_HARD_TOKENS = 8192
CPU_KV_BYTES = GIB
MAX_SEQS = 16_384
MAX_TOKEN_BUDGET = 1 << 20
MAX_SPECULATIVE_TOKENS = 32
MAX_WAITING = 65_536
GPU_RESERVE_BYTES = GIB
"""GPU memory left to activations, logits and the encoder cache when the KV cache takes the rest."""

PILLOW_PIXELS = 178_956_970
"""Beyond twice this many, Pillow itself refuses to read a header."""

STEP_POLICIES = ("stall-free", "prefill-first", "split-fuse", "latency-target")

_ORIGIN = re.compile(r"\*|https?://[^/\s*@]+")
_DOMAIN = re.compile(r"([a-z0-9-]+\.)*[a-z0-9-]+(:\d{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one `serve` process. None means "decided by `resolve`", which leaves none but an unset `api_key` and
    the latency target, which takes a measurement.

    Construction raises ConfigError, naming the field, its kind and its limit, for any value that cannot be meant.
    """

    model: str = setting("demo", "HF id or directory of the model; demo is the embedded one")
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one", at_least=0, at_most=65535)
    served_model_name: str | None = setting(None, "name that requests use (default: the model's own)")
    api_key: str | None = setting(
        None,
        "key that every request but /health must carry as a Bearer token",
        secret=True,
        env="WATCHWORD_API_KEY",
    )
    insecure: bool = setting(False, "let everybody who reaches --host use the server without a key")
    allowed_origins: str | None = setting(
        None,
        "origins of web pages that may use the server from a browser, such as https://a.example, separated by commas; "
        "* for all (default: none)",
    )
    allowed_media_domains: str | None = setting(
        None,
        "domains that images may be fetched from, such as a.example,b.example:8080 (default: none; images come in the "
        "request)",
    )
    drain_timeout_s: float = setting(
        20.0,
        "seconds that running answers may go on after SIGTERM; after Ctrl-C it is one at most",
        at_least=0.0,
        at_most=3600.0,
    )
    generation_config: str = setting(
        "auto",
        "where defaults of temperature, top_p, top_k, min_p, repetition_penalty and the answer's length come from "
        "(auto: the model's generation_config.json; vllm: the OpenAI API's defaults)",
        choices=("auto", "vllm"),
    )
    device: str = setting("auto", "where to compute; auto takes a GPU if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = setting(
        "auto",
        "number format of the weights (auto: bfloat16 on a GPU, on a CPU the faster one, measured once)",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = setting(
        "auto",
        "number format of matrix products on a CPU, in the text model and, in int8, in a vision transformer whose "
        "embeddings stay close enough (none: that of the weights; auto: whichever is fastest here, measured once; int4 "
        "only for weights that had four bits before)",
        choices=("auto", "none", "int8", "int4"),
    )
    attention_backend: str = setting(
        "auto",
        "what attention is computed with: sdpa gathers the pages of the KV cache, flex reads them in place and needs a "
        "GPU and a C compiler (auto: sdpa)",
        choices=("auto", "sdpa", "flex"),
    )
    max_model_len: int | None = setting(
        None, "most tokens of prompt and answer together (default: what the model and the KV cache allow)", at_least=1
    )
    max_num_batched_tokens: int | None = setting(
        None,
        "token budget of one step, at least --max-num-seqs, which a smaller budget lowers where it is not given "
        f"(default: what takes as long as the step's running answers, at most {CPU_TOKEN_BUDGET} on a CPU and "
        f"{GPU_TOKEN_BUDGET} on a GPU)",
        at_least=1,
        at_most=MAX_TOKEN_BUDGET,
    )
    max_num_seqs: int | None = setting(
        None,
        f"most requests running at once (default: {CPU_MAX_SEQS} on a CPU, {GPU_MAX_SEQS} on a GPU)",
        at_least=1,
        at_most=MAX_SEQS,
    )
    step_policy: str = setting(
        "stall-free",
        "order of a step: stall-free books every running decode first, prefill-first whole prompts first, split-fuse "
        "the shortest remainder first; latency-target is stall-free with a budget sized by --target-itl-ms",
        choices=STEP_POLICIES,
    )
    target_itl_ms: float | None = setting(
        None,
        "longest wait for a next token, in milliseconds, that prompts and images may cause under latency-target "
        "(default: twice a bare decode step, measured at the start)",
        at_least=0.1,
        at_most=60_000.0,
    )
    num_speculative_tokens: int = setting(
        6,
        "most tokens of an answer that are guessed in one step, where it repeats the prompt or itself; how many is "
        "decided by how often guesses come true and by what they cost (0: none; the answer is the same)",
        at_least=0,
        at_most=MAX_SPECULATIVE_TOKENS,
    )
    max_num_waiting: int = setting(
        1024,
        "most requests that wait for a place among the running ones; those beyond are answered 429 with Retry-After",
        at_least=1,
        at_most=MAX_WAITING,
    )
    kv_cache_memory_bytes: int | None = setting(
        None,
        "memory of the KV cache in bytes (default: 1 GiB on a CPU; on a GPU by --gpu-memory-utilization)",
        at_least=1,
    )
    gpu_memory_utilization: float = setting(
        0.9, "share of the GPU's memory this process may use", at_least=0.05, at_most=1.0
    )
    enable_prefix_caching: bool = setting(
        True, "compute a repeated prompt prefix anew instead of reusing its KV (default: reused)", off_flag=True
    )
    async_scheduling: bool = setting(
        True,
        "make a step only when the one before it has ended (default: on a GPU the next is made while one runs, where "
        "its result cannot change it)",
        off_flag=True,
    )
    max_request_bytes: int = setting(32 * MIB, "largest request body in bytes", at_least=1024, at_most=GIB)
    max_image_pixels: int = setting(
        64_000_000, "largest image in pixels, checked before it is decoded", at_least=1, at_most=PILLOW_PIXELS
    )
    cache_dir: Path = setting(  # noqa: RUF009 (a frozen Path is as good as a str)
        Path("~/.cache/watchword"), "where downloaded and assembled files live", env="WATCHWORD_CACHE"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
        self._check_budget()
        if self.target_itl_ms is not None and self.step_policy != "latency-target":
            raise ConfigError(f"--target-itl-ms is for --step-policy latency-target, not for {self.step_policy}")
        check_list("--allowed-origins", self.allowed_origins, _ORIGIN, "an origin such as https://a.example, or *")
        check_list("--allowed-media-domains", self.allowed_media_domains, _DOMAIN, "a domain such as a.example")

    def _check_budget(self) -> None:
        """R6: every running sequence must find room for its next token in every step."""
        budget, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if budget is not None and seqs is not None and budget < seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {budget} is less than --max-num-seqs {seqs}: every running request needs "
                "one token of each step; raise the first or lower the second"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build from a mapping; a key that is no setting is an error that names it and the nearest one."""
        names = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise ConfigError(f"unknown setting {key!r}{did_you_mean(key, names)}")
        return cls(**values)

    def resolve(self, hardware: Hardware, spec: ModelSpec) -> EngineConfig:
        """A new config with every default decided for this machine and model; raises ConfigError where they clash.

        `hardware` is read after the model was loaded, so that a GPU's free memory is what is left beside the weights.
        """
        on_gpu = hardware.device == "cuda"
        seqs, budget = self.max_num_seqs, self.max_num_batched_tokens
        if seqs is None:
            seqs = min(GPU_MAX_SEQS if on_gpu else CPU_MAX_SEQS, budget or GPU_MAX_SEQS)
        if budget is None:
            budget = GPU_TOKEN_BUDGET if on_gpu else CPU_TOKEN_BUDGET
        if self.max_model_len is not None and self.max_model_len > spec.max_model_len:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} is more than the model's own {spec.max_model_len} tokens"
            )
        if self.attention_backend == "flex" and not on_gpu:
            raise ConfigError("--attention-backend flex needs a GPU: on a CPU choose sdpa or auto")
        memory = hardware.memory_total_bytes
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes > memory:
            raise ConfigError(
                f"--kv-cache-memory-bytes {self.kv_cache_memory_bytes} is more than the {memory} bytes of memory here"
            )
        return dataclasses.replace(
            self,
            device=hardware.device,
            served_model_name=self.served_model_name or default_model_name(self.model),
            attention_backend="sdpa" if self.attention_backend == "auto" else self.attention_backend,
            max_model_len=self.max_model_len or spec.max_model_len,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes or self._kv_bytes(hardware),
            cache_dir=self.cache_dir.expanduser(),
        )

    def _kv_bytes(self, hardware: Hardware) -> int:
        if hardware.device != "cuda":
            return min(CPU_KV_BYTES, hardware.memory_total_bytes // 8)
        used = hardware.memory_total_bytes - hardware.memory_free_bytes
        room = int(hardware.memory_total_bytes * self.gpu_memory_utilization) - used - GPU_RESERVE_BYTES
        if room <= 0:
            raise ConfigError(
                f"--gpu-memory-utilization {self.gpu_memory_utilization} leaves no room for the KV cache: "
                f"{used / GIB:.1f} of {hardware.memory_total_bytes / GIB:.1f} GiB are in use; raise it or free the GPU"
            )
        return room

    def hard_num_batched_tokens(self, max_atomic_len: int) -> int:
        """The bound of one step that nothing may pass, and the largest token budget that may be set while running.

        An image whose `max_atomic_len` tokens cannot be split fits beside a token of every other running request.
        """
        floor = GPU_HARD_TOKENS if self.device == "cuda" else CPU_HARD_TOKENS
        beside = (self.max_num_seqs or 1) - 1 if max_atomic_len else 0
        return max(floor, self.max_num_batched_tokens or 0, max_atomic_len + beside)

    def describe(self) -> str:
        """All settings in one line: secrets redacted, and left out where there is none."""
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not field.metadata["secret"]:
                shown.append(f"{field.name}={value}")
            elif value:
                shown.append(f"{field.name}=***")
        return " ".join(shown)


def default_model_name(model: str) -> str:
    """The name requests use for `model`: a directory's last part, anything else as it is."""
    return Path(model).resolve().name if Path(model).is_dir() else model

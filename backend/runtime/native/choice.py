"""Which text backend computes fastest on this machine: measured once for each model shape, then remembered.

Int8 products, in groups of 32, are meant to keep the loss on captions within 2 % of float32's and the most likely token
in at least 95 % of cases: `python -m tests.bench.quality` measures both. Int4 keeps them, too, for weights that had
four bits before, such as the embedded model's; others it would round too much, so for those it must be demanded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from backend.errors import ConfigError
from backend.readings import RememberedReadings, processor_name
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.kv_pool import KvPool
from backend.runtime.native.compiler import find_native_obstacle, kernel_cache
from backend.runtime.native.weights import find_int4_obstacle
from backend.runtime.text_backend import NATIVE, TextBackend, make_text

if TYPE_CHECKING:
    from backend.models.adapter import ModelAdapter, TextParts

CANDIDATES = {
    "none": ("torch",),
    "int8": ("native-int8",),
    "int4": ("native-int4",),
    "auto": ("torch", "native", "native-int8", "native-int4"),
}
TITLES = {
    "torch": "float32 (torch)",
    "native": "float32 (compiled)",
    "native-int8": "int8 (compiled)",
    "native-int4": "int4 (compiled)",
}
ROWS = (1, 8, 64)
"""Steps measured: one and eight answers running, and a prompt's chunk."""
BLOCK_SIZE, NUM_REPEATS = 16, 3

Say = Callable[[str], None]


def find_obstacles(parts: TextParts, quantization: str) -> dict[str, str | None]:
    """The text backends that `quantization` allows, and why one cannot be used here, in a few words."""
    obstacles: dict[str, str | None] = dict.fromkeys(CANDIDATES[quantization])
    for name in obstacles:
        if name != "torch":
            obstacles[name] = find_native_obstacle(parts, int8=NATIVE[name] != "float32")
    if quantization == "auto" and obstacles["native-int4"] is None:
        obstacles["native-int4"] = find_int4_obstacle(parts)
    return obstacles


def choose_text(adapter: ModelAdapter, quantization: str, cache_dir: Path, say: Say) -> str:
    """The fastest text backend among those that `quantization` allows; says which and why.

    Raises ConfigError when int8 or int4 is demanded and cannot be had.
    """
    obstacles = find_obstacles(adapter.text_parts(), quantization)
    usable = [name for name in obstacles if not obstacles[name]]
    if not usable:
        raise ConfigError(
            f"--quantization {quantization} cannot be used: {'; '.join(filter(None, obstacles.values()))}"
        )
    if len(usable) == 1:
        reason = next((o for o in obstacles.values() if o), "as demanded")
        if quantization != "none":
            say(f"Text model: {TITLES[usable[0]]}; {reason}")
        return usable[0]
    memory, key = RememberedReadings(kernel_cache(cache_dir) / "choices.json"), _key(adapter, usable)
    times = memory.recall(key)
    if times is None:
        say("Measuring how the text model runs best here; kernels are compiled once per machine (a minute) …")
        times = {name: _measure(adapter, name, say) for name in usable}
        memory.remember(key, times)
    best = min(times, key=lambda name: _score(times[name]))
    shown = "; ".join(f"{TITLES[name]} {' / '.join(f'{ms:.1f}' for ms in taken)} ms" for name, taken in times.items())
    rest = "".join(f"; {obstacle}" for obstacle in dict.fromkeys(filter(None, obstacles.values())))
    say(
        f"Text model: {TITLES[best]}, the fastest of {shown} (1 and 8 answers, a chunk of 64){rest}{memory.caveat(key)}"
    )
    return best


def _score(times_ms: list[float]) -> float:
    product = 1.0
    for ms in times_ms:
        product *= ms
    return product


def _measure(adapter: ModelAdapter, name: str, say: Say) -> list[float]:
    """Milliseconds of a step with each of `ROWS`; infinite where the backend fails."""
    num_blocks = -(-max(ROWS) // BLOCK_SIZE)
    pool = KvPool(
        adapter.spec, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=adapter.dtype, device=adapter.device
    )
    try:
        text = make_text(name, adapter, pool, attention="sdpa")
        with torch.inference_mode():
            return [_best_of(adapter, text, rows) for rows in ROWS]
    except Exception as error:  # numba and LLVM raise many unrelated types; none of them may prevent a start
        say(f"Text model: {TITLES[name]} is left out: {str(error).partition(chr(10))[0] or type(error).__name__}")
        return [float("inf")] * len(ROWS)


def _best_of(adapter: ModelAdapter, text: TextBackend, rows: int) -> float:
    """The shortest of some steps of one sequence whose last `rows` tokens are computed."""
    slots = torch.arange(rows)
    inputs = AttentionInputs((0, rows), (rows,), (tuple(range(-(-rows // BLOCK_SIZE))),), slots)
    best = float("inf")
    for _ in range(NUM_REPEATS + 1):
        start = time.perf_counter()
        hidden = text.forward(adapter.embed(torch.zeros(rows, dtype=torch.int64)), slots[None], inputs)
        text.logits(hidden[-1:])
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best


def _key(adapter: ModelAdapter, usable: list[str]) -> str:
    spec = adapter.spec
    shape = (spec.num_layers, spec.hidden_size, spec.num_kv_heads, spec.head_dim, spec.vocab_size)
    return repr((processor_name(), torch.get_num_threads(), torch.__version__, version("numba"), shape, usable))

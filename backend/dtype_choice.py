"""Which number format the weights get on a CPU by `--dtype auto`: bfloat16 is faster on some, slower on others.

Measured on matrix products of the model's own sizes, once per machine, and remembered. Where int8 products may be used
there is nothing to measure: they are made of float32 weights, and read a quarter of their bytes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from backend.readings import Readings, RememberedReadings, processor_name

FORMATS = ("float32", "bfloat16")
ROWS = (1, 8, 64)
"""One and eight answers running, and a prompt's chunk."""
_USUAL_SIZES = (1024, 4096)
_MOST = 16_384
"""Larger matrices say nothing new and take long."""
_NUM_SAMPLES = 5

Say = Callable[[str], None]


def choose_dtype(model: str, quantization: str, cache_dir: Path, say: Say) -> str:
    """The faster format for `model` on this CPU; says which and why."""
    import torch

    from backend.runtime.native.compiler import find_kernel_obstacle

    if quantization != "none" and find_kernel_obstacle(int8=True) is None:
        return "float32"
    sizes = sizes_of(Path(model))
    memory = RememberedReadings(cache_dir.expanduser() / "dtype.json")
    key = repr((processor_name(), torch.get_num_threads(), torch.__version__, sizes))
    readings = memory.recall(key)
    if readings is None:
        readings = {name: measure(name, sizes) for name in FORMATS}
        memory.remember(key, readings)
    best = fastest(readings)
    shown = "; ".join(f"{name} {' / '.join(f'{ms:.2f}' for ms in taken)} ms" for name, taken in readings.items())
    say(f"Weights: {best}, the faster of {shown} (1, 8 and 64 rows times {sizes[0]} x {sizes[1]}){memory.caveat(key)}")
    return best


def fastest(readings: Readings) -> str:
    """The format whose times have the least product."""
    return min(FORMATS, key=lambda name: math.prod(readings[name]))


def sizes_of(directory: Path) -> tuple[int, int]:
    """Hidden and intermediate size by a checkpoint's config.json; usual ones where it does not say, or is elsewhere."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config", config)
        return min(_MOST, int(text["hidden_size"])), min(_MOST, int(text["intermediate_size"]))
    return _USUAL_SIZES


def measure(name: str, sizes: tuple[int, int]) -> list[float]:
    """Milliseconds of a product with each of `ROWS` rows, the best of a few; infinite where the format fails."""
    import torch

    times: list[float] = []
    try:
        weight = torch.ones(sizes[1], sizes[0], dtype=getattr(torch, name))
        with torch.inference_mode():
            for rows in ROWS:
                x = torch.ones(rows, sizes[0], dtype=weight.dtype)
                best_s = math.inf
                for _ in range(1 + _NUM_SAMPLES):
                    begin = time.perf_counter()
                    torch.nn.functional.linear(x, weight)
                    best_s = min(best_s, time.perf_counter() - begin)
                times.append(best_s * 1e3)
    except (RuntimeError, AttributeError):  # a processor, or a build of torch, without the format
        return [math.inf] * len(ROWS)
    return times

"""What the device can do, measured: how fast it copies memory and multiplies matrices of bfloat16; and how to time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second, read and written together, and operations a second in bfloat16 products."""

    bytes_per_s: float
    flops_per_s: float


def measure_rates(device: str, is_tiny: bool) -> Rates:
    """The best of several runs, on memory far larger than any cache and on one large product."""
    num_bytes, side = (1 << 24, 256) if is_tiny else (1 << 30, 8192)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = torch.randn(2, side, side, device=device).bfloat16()
    return Rates(
        2 * num_bytes / min(timed(device, lambda: target.copy_(source), 10)),
        2 * side**3 / min(timed(device, lambda: a @ b, 10)),
    )


def timed(device: str, work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` runs, from an idle device to an idle device, after one or two that do not count."""
    seconds = []
    for _ in range(repeats + min(2, repeats)):
        settle(device)
        started = time.perf_counter()
        work()
        settle(device)
        seconds.append(time.perf_counter() - started)
    return seconds[-repeats:]


def settle(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def percentile(values: list[float], percent: float) -> float:
    """The value that `percent` % of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

"""What the machine offers: its device, memory and cores. Owns probing; decides nothing (that is `config.resolve`).

Nothing heavy is imported at module level: threads must be settled in the environment before torch is loaded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from backend.errors import ConfigError

_CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One reading of the machine. Memory is the device's own: RAM for a CPU, device memory for a GPU; bytes."""

    device: str
    name: str
    memory_total_bytes: int
    memory_free_bytes: int
    num_physical_cores: int


def probe(device: str) -> Hardware:
    """Read the machine for `device` ("auto", "cpu" or "cuda"); "auto" takes a GPU where there is one.

    Raises ConfigError when "cuda" is asked for and none can be used.
    """
    import torch

    if device != "cpu" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return Hardware("cuda", torch.cuda.get_device_name(), total, free, num_physical_cores())
    if device == "cuda":
        raise ConfigError("--device cuda: PyTorch finds no usable GPU here; use --device cpu or auto")
    total = _memory_total_bytes()
    return Hardware("cpu", "CPU", total, min(total, _memory_free_bytes()), num_physical_cores())


def num_physical_cores() -> int:
    """Physical cores this process may use: hyperthreads counted once, CPU affinity and container quota respected."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(siblings), _cgroup_cpus() or len(siblings)))


def _siblings(cpu: int) -> str:
    """The name of the physical core that `cpu` belongs to (the CPU's own number where the kernel does not say)."""
    try:
        return (_CPU_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_cpus() -> int | None:
    """Whole CPUs of the container's quota, None where there is none."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def _memory_total_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))


def _memory_free_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

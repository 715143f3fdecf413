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

IDLE_THREADS = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000"}
"""How OpenMP's threads wait: awake for about as long as waking them would take, then asleep.

Torch's parallel loops follow one another within microseconds, and waking a thread takes longer than many of them run.
But a thread that waits awake for one that the system has put aside wastes its core: with 20 times as many looks, a
decode step beside one other busy process took ten times as long. GNU's library does not wait awake at all where there
are more threads than cores, unless the policy is active.
"""


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


def settle_threads() -> str:
    """One compute thread per physical core, unless the environment says otherwise; returns what now holds.

    To be called before torch or numba is loaded.
    """
    settings = {"OMP_NUM_THREADS": str(num_physical_cores())} | IDLE_THREADS
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return " ".join(f"{name}={os.environ[name]}" for name in settings)


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

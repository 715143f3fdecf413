"""What a command asks of the machine before it starts anything: free ports, physical cores."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from backend.server.port import port_refusal, take_port

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def require_free(host: str, port: int, flag: str) -> None:
    """Raise `ConfigError` unless something could listen on `host:port`. `flag` is how to choose another port."""
    with take_port(host, port, flag=flag) as probe:
        try:
            probe.listen(1)
        except OSError as error:
            raise port_refusal(host, port, error, flag) from None


def free_port(host: str) -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def reachable(host: str) -> str:
    """The address under which a server that listens on `host` is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, f"[{host}]" if ":" in host else host)


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once and a container's quota obeyed; at least 1."""
    try:
        cpus = sorted(os.sched_getaffinity(0))
        cores = {Path(_SIBLINGS.format(cpu)).read_text().strip() for cpu in cpus}
        num_cores = len(cores)
    except (AttributeError, OSError):
        num_cores = os.cpu_count() or 1
    return max(1, min(num_cores, _quota_cores() or num_cores))


def _quota_cores() -> int | None:
    try:
        quota, period = _QUOTA.read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None

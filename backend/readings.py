"""What was measured on this machine and need not be measured again: a JSON file of named readings.

Readings carry the load at the time: what was measured beside other work is measured again at the first quieter start,
and said to be doubtful until then. Knows nothing of what is measured; a file that cannot be read or written costs a
measurement, nothing else.
"""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

Readings = dict[str, list[float]]
LOAD = "load_average"
"""The name under which readings carry the load."""
BUSY = 0.5
"""A load average for each core from which on readings are doubtful: half of the machine was at other work."""

DISTURBED = 0.15
"""A share of the processors in other hands from which on a profile is doubtful."""
_STAT = Path("/proc/stat")


@cache
def machine_load() -> float:
    """The load average of the past minute, for each core; 0 where the system does not tell.

    As it was when first asked: later, this process's own work is in it.
    """
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 0.0


class OtherWork:
    """What other programs take of the processors from now on; other machines on the same host count as such."""

    def __init__(self) -> None:
        self._begin = _processor_s()
        self._t_begin = time.monotonic()

    def share(self) -> float:
        """Their share of all processors since then, 0 to 1; 0 where the system does not tell."""
        begin, now = self._begin, _processor_s()
        elapsed_s = (time.monotonic() - self._t_begin) * (os.cpu_count() or 1)
        if begin is None or now is None or elapsed_s <= 0.0:
            return 0.0
        return max(0.0, min(1.0, (now - begin) / elapsed_s))


def _processor_s() -> float | None:
    """Seconds that anybody but this process had of all processors together, since some moment."""
    with suppress(OSError, ValueError, IndexError):
        user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text(encoding="ascii").split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - time.process_time()
    return None


class RememberedReadings:
    """Readings by key in the file at `path`. `load`: of each core now, before anything is measured."""

    def __init__(self, path: Path, load: float | None = None) -> None:
        self._path = path
        self._load = machine_load() if load is None else load

    def recall(self, key: str) -> Readings | None:
        """What was remembered under `key`; None if nothing was, or beside other work that is gone now."""
        readings = self._read().get(key)
        if readings is None or (self._load < BUSY <= _load_of(readings)):
            return None
        return {name: numbers for name, numbers in readings.items() if name != LOAD}

    def remember(self, key: str, readings: Readings) -> None:
        """Keep `readings`, with the load before them, for later processes."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._read() | {key: readings | {LOAD: [self._load]}}
            self._path.write_text(json.dumps(kept), encoding="utf-8")

    def caveat(self, key: str) -> str:
        """What must be said beside figures remembered under `key`: nothing, or that the machine was busy."""
        load = _load_of(self._read().get(key, {}))
        if load < BUSY:
            return ""
        return f"; measured beside other work (load {load:.1f} a core), and again at a quieter start"

    def _read(self) -> dict[str, Readings]:
        with suppress(OSError, ValueError):
            known = json.loads(self._path.read_text(encoding="utf-8"))
            return known if isinstance(known, dict) else {}
        return {}


def _load_of(readings: Readings) -> float:
    return readings.get(LOAD, [0.0])[0]


def processor_name() -> str:
    """The processor's model, as part of a key: another machine measures for itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

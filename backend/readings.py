"""What was measured on this machine and need not be measured again: a JSON file of named readings.

Knows nothing of what is measured; a file that cannot be read or written costs a measurement, nothing else.
"""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from pathlib import Path

Readings = dict[str, list[float]]


class RememberedReadings:
    """Readings by key in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def recall(self, key: str) -> Readings | None:
        """What was remembered under `key`, or None."""
        return self._read().get(key)

    def remember(self, key: str, readings: Readings) -> None:
        """Keep `readings` for later processes."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._read() | {key: readings}), encoding="utf-8")

    def _read(self) -> dict[str, Readings]:
        with suppress(OSError, ValueError):
            known = json.loads(self._path.read_text(encoding="utf-8"))
            return known if isinstance(known, dict) else {}
        return {}


def processor_name() -> str:
    """The processor's model, as part of a key: another machine measures for itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

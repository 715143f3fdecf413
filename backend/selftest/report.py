"""What a selftest found: one result a check, and the verdict on all of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from backend.selftest.compare import Difference

FORMAT = 1
"""Version of the JSON's shape."""
EXIT_EQUAL, EXIT_DIFFERENT, EXIT_BROKEN = 0, 1, 2


class Status(StrEnum):
    """How a check ended."""

    EQUAL = "equal"
    TIE = "tie"
    """Different tokens, where the expected one led by less than rounding can turn."""
    DIFFERENT = "DIFFERENT"
    IDLE = "idle"
    """Equal, but what the check is about did not come up."""
    REPORTED = "reported"
    """Compared, not judged: the answers need not be equal."""
    BROKEN = "BROKEN"
    """It could not be carried out."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. `num_equal` of `num_tokens` tokens came before the first difference of their answer."""

    name: str
    status: Status
    what: str
    num_equal: int = 0
    num_tokens: int = 0
    differences: tuple[Difference, ...] = ()

    @property
    def widest(self) -> float | None:
        """The largest margin of its differences."""
        return max((d.margin for d in self.differences), default=None)


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. `notes` say what the checks could not show with this model."""

    model: str
    family: str
    device: str
    dtype: str
    margin: float
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...]
    took_s: float

    @property
    def exit_status(self) -> int:
        """1 if anything differs beyond the margin, else 2 if anything could not be carried out, else 0."""
        statuses = {check.status for check in self.checks}
        if Status.DIFFERENT in statuses:
            return EXIT_DIFFERENT
        return EXIT_BROKEN if Status.BROKEN in statuses else EXIT_EQUAL

    def to_json(self) -> dict[str, Any]:
        """Plain values; a margin beyond all known candidates is null."""
        return {"format": FORMAT, "exit_status": self.exit_status} | _plain(asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if value == math.inf else value

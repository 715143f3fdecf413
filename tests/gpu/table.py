"""The one table of the device check."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

OK = "ok"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. A verdict that is neither `OK` nor in brackets is a fault."""

    part: str
    model: str
    case: str
    figures: str
    verdict: str = OK

    @property
    def is_fault(self) -> bool:
        """Whether the check fails because of it."""
        return self.verdict != OK and not self.verdict.startswith("(")


def attempt(part: str, model: str, case: str, work: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of `work` as they come, and one that says why no more do. Memory that does not suffice is no fault."""
    try:
        yield from work()
    except (
        Exception
    ) as error:  # compilers and drivers raise many unrelated types; the other rows are wanted all the same
        is_memory = type(error).__name__ == "OutOfMemoryError"
        if not is_memory:
            traceback.print_exc()
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:160]
        yield Row(part, model, case, "", "(does not fit into this device's memory)" if is_memory else reason)


def show(rows: Iterable[Row]) -> str:
    """The rows under one another, in columns as wide as need be."""
    lines = [("part", "model", "case", "figures", "verdict")]
    lines += [(r.part, r.model, r.case, r.figures, r.verdict) for r in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join("  ".join((*map(str.ljust, line[:4], widths), line[4])).rstrip() for line in lines)

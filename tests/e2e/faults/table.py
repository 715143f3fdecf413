"""The fault matrix as it is printed: a line for each fault, what it cost and how long it lasted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """One fault. `num_announced` events ended from the fault until it was over, `num_lost` of them are not kept.

    `num_cut` had begun and were never heard of again. `back_s` runs from the end of the cause to the next description
    of something that happened after it.
    """

    fault: str
    num_announced: int
    num_lost: int
    num_failed: int
    num_cut: int
    back_s: float
    meanwhile: str


@dataclass
class Table:
    """All rows, in the order in which the faults struck."""

    rows: list[Row] = field(default_factory=list)

    @property
    def num_cut(self) -> int:
        """Events of all rows that were cut short."""
        return sum(row.num_cut for row in self.rows)

    def text(self) -> str:
        """The table, ready to be printed."""
        head = ("fault", "announced", "lost", "failed", "cut short", "back after", "meanwhile")
        lines = [
            (
                row.fault,
                str(row.num_announced),
                str(row.num_lost),
                str(row.num_failed),
                str(row.num_cut),
                f"{row.back_s:.1f} s",
                row.meanwhile,
            )
            for row in self.rows
        ]
        widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head) - 1)]
        return "\n".join(_line(line, widths) for line in (head, *lines))


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = (f"{cell:>{width}}" for cell, width in zip(cells[:-1], widths, strict=True))
    return "  ".join([f"{name.strip():<{widths[0]}}", *numbers, cells[-1]])

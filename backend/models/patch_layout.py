"""How the encoding of one picture, a flat sequence of patches, is cut into slices: worked out before anything is run.

A block is two passes over the patches: `project` makes queries, keys and values of a range of them; `attend` takes a
range through attention and the rest of the block. Ranges are as long as their measured pace allows, and a slice holds
as much as it has time for. Pure arithmetic: the count that a request announces is the count that is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from backend.models.vision_slices import split_rows

Stage = Literal["embed", "project", "attend", "tap", "merge"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one call: `call_s` however few its rows are (its weights come from memory), and `row_s` for each."""

    call_s: float = 0.0
    row_s: float = 0.0

    def of(self, num_rows: int) -> float:
        """Seconds of a call for so many rows."""
        return self.call_s + num_rows * self.row_s

    def split(self, num_rows: int, slice_s: float) -> list[range]:
        """Ranges that take at most `slice_s` where possible, but long enough to be worth their call.

        At least as much time goes into the rows as into the call: shorter slices would take more than twice as long.
        """
        if not self.row_s:
            return [range(num_rows)]
        most = max(slice_s - self.call_s, self.call_s) / self.row_s
        return split_rows(num_rows, 1.0, max(most, 1.0))


@dataclass(frozen=True, slots=True)
class Pace:
    """The cost of each stage by patches, and seconds per pair of a query and a key; 0 where blocks are fast enough."""

    embed: Cost = Cost()
    project: Cost = Cost()
    finish: Cost = Cost()
    merge: Cost = Cost()
    pair_s: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether there is anything to cut by."""
        return self.project.row_s > 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """`count` segments of `key_len` patches each from `key_start` on, seen by patches `[start, start + length)`.

    Several segments: the patches are all of theirs, and each sees its own segment. One: they are some or all of it.
    """

    start: int
    length: int
    key_start: int
    key_len: int
    count: int


@dataclass(frozen=True, slots=True)
class Work:
    """One call: `stage` of block `block` for patches `rows`; `runs` say what an `attend` sees."""

    stage: Stage
    block: int
    rows: range
    runs: tuple[Run, ...] = ()
    seconds: float = 0.0


def plan_slices(
    num_patches: int,
    segments_by_block: Sequence[Sequence[int]],
    taps: Iterable[int],
    pace: Pace,
    slice_s: float,
) -> tuple[tuple[Work, ...], ...]:
    """All work on one picture in order, slice by slice.

    `segments_by_block[b]` are the lengths of the stretches of patches that see one another in block b. After the blocks
    in `taps` features are tapped. Without a measured pace, every block is a slice.
    """
    slices: list[list[Work]] = [[]]
    spent_s = 0.0
    for work in _all_work(num_patches, segments_by_block, frozenset(taps), pace, slice_s):
        last = slices[-1][-1] if slices[-1] else work
        is_full = spent_s + work.seconds > slice_s if pace.is_measured else work.block != last.block
        if slices[-1] and is_full:
            slices.append([])
            spent_s = 0.0
        slices[-1].append(work)
        spent_s += work.seconds
    return tuple(tuple(works) for works in slices)


def _all_work(
    num_patches: int, segments_by_block: Sequence[Sequence[int]], taps: frozenset[int], pace: Pace, slice_s: float
) -> Iterator[Work]:
    def ranges(stage: Stage, block: int, cost: Cost) -> Iterator[Work]:
        for rows in cost.split(num_patches, slice_s):
            yield Work(stage, block, rows, seconds=cost.of(len(rows)))

    yield from ranges("embed", 0, pace.embed)
    attends: dict[tuple[int, ...], list[Work]] = {}
    for block, segments in enumerate(map(tuple, segments_by_block)):
        yield from ranges("project", block, pace.project)
        if segments not in attends:
            attends[segments] = list(_attend(num_patches, segments, pace, slice_s))
        for work in attends[segments]:
            yield Work(work.stage, block, work.rows, work.runs, work.seconds)
        if block in taps:
            yield from ranges("tap", block, pace.merge)
    yield from ranges("merge", len(segments_by_block) - 1, pace.merge)


def _attend(num_patches: int, segments: Sequence[int], pace: Pace, slice_s: float) -> Iterator[Work]:
    num_pairs = sum(length * length for length in segments)
    cost = Cost(pace.finish.call_s, pace.finish.row_s + num_pairs / num_patches * pace.pair_s)
    for rows in cost.split(num_patches, slice_s):
        yield Work("attend", 0, rows, tuple(find_runs(rows, segments)), cost.of(len(rows)))


def find_runs(rows: range, segments: Sequence[int]) -> Iterator[Run]:
    """What each of `rows` sees: neighbouring whole segments of one length together, parts of segments by themselves."""
    pending: Run | None = None
    for key_start, key_len in zip(accumulate(segments, initial=0), segments, strict=False):
        start, end = max(rows.start, key_start), min(rows.stop, key_start + key_len)
        if start >= end:
            continue
        run = Run(start, end - start, key_start, key_len, 1)
        if pending is not None and _is_whole(run) and _is_whole(pending) and pending.key_len == key_len:
            pending = Run(pending.start, pending.length + key_len, pending.key_start, key_len, pending.count + 1)
            continue
        if pending is not None:
            yield pending
        pending = run
    if pending is not None:
        yield pending


def _is_whole(run: Run) -> bool:
    return run.start == run.key_start and run.length == run.key_len * run.count

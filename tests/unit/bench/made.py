"""Recordings and measurements with exact times, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ui.bench.phase import Measured
from ui.bench.recorder import Kind, Outcome, Recording
from ui.bench.scenario import Phase


def recording(
    t_sent: float,
    ttft: float,
    gaps: Sequence[float] = (),
    *,
    kind: Kind = Kind.CHAT,
    outcome: Outcome = Outcome.OK,
    **more: Any,
) -> Recording:
    """A request with its first token after `ttft` seconds and the others after `gaps`."""
    times = list(accumulate(gaps, initial=t_sent + ttft))
    t_end = None if outcome is Outcome.OPEN else times[-1]
    return Recording(kind, more.pop("stream", 0), t_sent, times, t_end, outcome=outcome, **more)


def unanswered(t_sent: float, *, kind: Kind = Kind.DOCUMENT, outcome: Outcome = Outcome.CUT) -> Recording:
    """A request without a single token."""
    return Recording(kind, 0, t_sent, outcome=outcome)


def measured(
    name: str, recordings: Sequence[Recording], *, run: int = 1, end: float | None = 10.0, **phase: Any
) -> Measured:
    """A phase of one run that began at 0; `end` None leaves it unfinished. `phase` are fields of `Phase`."""
    fields: dict[str, Any] = {"chats": 1} | phase
    return Measured(Phase(name, **fields), run, 0.0, end, list(recordings))

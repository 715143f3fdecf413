"""What a start is doing, in words, and since when: a model takes from seconds to minutes until it serves.

Written by the thread that loads, read by others meanwhile. Knows nothing of HTTP, nor of how anything is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Say = Callable[[str], None]
"""Where progress goes: one line for a person."""


class Phase(StrEnum):
    """The parts of a start, in their order, as they are told to people; not every start has all of them."""

    LIBRARIES = "loading libraries"
    FILES = "getting the model's files"
    WEIGHTS = "loading the weights"
    KERNELS = "preparing compiled kernels"
    WARM_UP = "warming up, which compiles new kernels"
    PROFILE = "timing this machine"


Enter = Callable[[Phase], None]
"""Called when a phase begins; the one before has then ended."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a start is: its phase, the phase's last line for a person (or empty), and seconds since each began."""

    phase: Phase
    detail: str
    phase_s: float
    elapsed_s: float


class Startup:
    """One start. `say` passes lines on and remembers the last one; `clock` gives seconds that only grow."""

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._t_begin = clock()
        # One value, replaced as a whole: a reader never sees the phase of one moment with the line of another.
        self._now = (Phase.LIBRARIES, "", self._t_begin)

    def enter(self, phase: Phase) -> None:
        """The next phase begins."""
        self._now = (phase, "", self._clock())

    def say(self, line: str) -> None:
        """Tell a person something about the current phase."""
        phase, _, t_phase = self._now
        self._now = (phase, line, t_phase)
        self._say(line)

    def progress(self) -> Progress:
        """How far the start is now. Any thread."""
        phase, detail, t_phase = self._now
        now = self._clock()
        return Progress(phase, detail, now - t_phase, now - self._t_begin)

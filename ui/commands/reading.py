"""How far files have been read, beside the lines that tell of it: bars in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from camera_sources.base import SourceState
from pipeline.feed import CameraChanged, FeedItem

LINE_EVERY_S = 10.0


class Reading:
    """Use as a context manager; what is told through `say` stands above the bars. Unless `shown`, `say` is all it does.

    Only sources that know their own length are shown.
    """

    def __init__(self, console: Console, *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._shown = shown
        self._clock = clock
        self._t_line = clock()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,  # it may be somebody's JSONL
            disable=not (shown and console.is_terminal),
        )
        self._tasks: dict[str, TaskID] = {}
        self._shares: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        """One line, as it is."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def take(self, item: FeedItem) -> None:
        """Take in one piece of news; what says nothing of a length is no news here."""
        if not self._shown or not isinstance(item, CameraChanged) or item.status.num_total is None:
            return
        camera, status = item.camera_id, item.status
        total = max(1, item.status.num_total)
        self._shares[camera] = 1.0 if status.state is SourceState.ENDED else min(1.0, status.num_frames / total)
        if camera not in self._tasks:
            self._tasks[camera] = self._bars.add_task(camera, total=1.0)
        self._bars.update(self._tasks[camera], completed=self._shares[camera])
        if not self._console.is_terminal and self._clock() - self._t_line >= LINE_EVERY_S:
            self._t_line = self._clock()
            self.say(", ".join(f"{name}: {share:.0%} read" for name, share in self._shares.items()))

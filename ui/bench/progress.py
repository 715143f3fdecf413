"""How far a measurement is, told on stderr: a bar in a terminal, a line per phase elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ui.errors import say


class Meter:
    """Shows one phase after the other. Use inside `shown()`."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._num_phases, self._num_begun = 0, 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
            # Drawing takes time of the processor that is measured.
            refresh_per_second=2,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("warming up", total=None)

    def expect(self, num_phases: int) -> None:
        """So many phases will be shown."""
        self._num_phases = num_phases
        self._bar.update(self._task, total=num_phases)

    @contextmanager
    def shown(self) -> Iterator[Meter]:
        """The bar is on the screen in here."""
        with self._bar:
            yield self

    def begin(self, name: str) -> None:
        """The next phase begins."""
        self._num_begun += 1
        self._bar.update(self._task, description=name, completed=self._num_begun - 1)
        if not self._console.is_terminal:
            typer.echo(f"{self._num_begun}/{self._num_phases}  {name}", err=True)

    def update(self, share: float) -> None:
        """So much of the phase is done, 0 to 1."""
        self._bar.update(self._task, completed=self._num_begun - 1 + share)

    def say(self, line: str) -> None:
        """A line beside the bar."""
        self._console.print(say(Exception(line)), markup=False, highlight=False, soft_wrap=True)

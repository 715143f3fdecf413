"""What the engine asks of whatever computes Steps: launch one, and land it later.

On a GPU a launched step is queued, and the next may be made and launched before it has ended. Knows no tensors.
"""

from __future__ import annotations

from typing import Protocol

from backend.types.result import StepResult
from backend.types.step import Step


class Flight(Protocol):
    """A step that was launched: computed already, or on its way."""

    @property
    def is_smooth(self) -> bool:
        """Whether nothing has failed so far, so that the next step may be made without the result of this one."""
        ...

    def land(self) -> StepResult:
        """Wait for the step to end; what came of it. Called once."""
        ...


class StepRunner(Protocol):
    """Whatever computes Steps, in the order they are launched. Called on the engine thread alone."""

    def launch(self, step: Step) -> Flight:
        """Begin to compute. At most one step before it has not landed; it may be of tokens that that one samples.

        An exception, here or in `Flight.land`, means that nothing can be computed any more.
        """
        ...

    def execute(self, step: Step) -> StepResult:
        """Launch and land."""
        ...

    def close(self) -> None:
        """Give back what the runner holds; called once, after the last step."""
        ...

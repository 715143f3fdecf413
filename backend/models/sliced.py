"""A way to pause any vision tower, without knowing how it calls its parts.

The tower runs in a greenlet; a pause switches back to whoever resumed it. It pauses before each of the given blocks but
the first, and inside them wherever a part says how long it will take (`spend`) and that would make the slice too long.
The tower's code, its arguments and its results stay untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from backend.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

SLICE_S = 0.0025
"""How long a slice should take at most, in seconds. Work that does not say how long it takes comes on top.

A quarter of the encoder's time in a step beside decodes, so that whole slices leave little of it unused."""


class SlicedTower:
    """Runs calls of one tower in pieces that begin with each of `blocks`, and shorter ones where the parts allow.

    Calls may be interleaved, on one thread. Where a call pauses depends on what it spends alone, so calls of one shape
    have one number of slices. Grad and inference mode belong to the thread, not to the greenlet: whoever resumes a call
    holds `torch.inference_mode()`; the call itself must not enter it, or it would leak out at the next pause.
    """

    def __init__(self, blocks: Sequence[torch.nn.Module], *, slice_s: float = SLICE_S) -> None:
        try:
            import greenlet
        except ImportError as error:
            raise ModelLoadError("image models need the package greenlet: pip install greenlet") from error
        self._greenlet = greenlet
        self._spent_s: dict[greenlet.greenlet, float] = {}
        self.slice_s = slice_s
        for block in blocks[1:]:
            block.register_forward_pre_hook(self._pause)

    def run(self, call: Callable[[], torch.Tensor]) -> Generator[None, None, torch.Tensor]:
        """`call()`, in slices. Closing the generator unwinds the call where it stands."""
        tower = self._greenlet.greenlet(call)
        self._spent_s[tower] = 0.0
        try:
            result = tower.switch()
            while not tower.dead:
                yield
                result = tower.switch()
            return result
        finally:
            del self._spent_s[tower]
            tower.throw()  # GreenletExit into a paused call; nothing happens to one that has ended

    def count(self, call: Callable[[], torch.Tensor]) -> int:
        """The slices of `call()`, found by running it."""
        return 1 + sum(1 for _ in self.run(call))

    def spend(self, seconds: float) -> None:
        """Say that what comes next takes so long: pauses first if the slice has done something and would get too long.

        Outside a run it does nothing.
        """
        current = self._greenlet.getcurrent()
        spent_s = self._spent_s.get(current)
        if spent_s is None:
            return
        if spent_s and spent_s + seconds > self.slice_s:
            self._pause()
        self._spent_s[current] += seconds

    def _pause(self, *_: Any) -> None:
        current = self._greenlet.getcurrent()
        if current in self._spent_s:
            assert current.parent is not None, "only the thread's main greenlet has no parent"
            self._spent_s[current] = 0.0
            current.parent.switch()

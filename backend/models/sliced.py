"""A way to pause any vision tower between its blocks, without knowing how it calls them.

The tower runs in a greenlet; a hook before each of the given blocks but the first switches back to whoever resumed it.
The tower's code, its arguments and its results stay untouched: the embeddings are bit-identical to an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from backend.errors import ModelLoadError

if TYPE_CHECKING:
    import torch


class SlicedTower:
    """Runs calls of one tower in pieces that begin with each of `blocks`. Calls may be interleaved, on one thread.

    Grad and inference mode belong to the thread, not to the greenlet: whoever resumes a call holds
    `torch.inference_mode()`; the call itself must not enter it, or it would leak out at the next pause.
    """

    def __init__(self, blocks: Sequence[torch.nn.Module]) -> None:
        try:
            import greenlet
        except ImportError as error:
            raise ModelLoadError("image models need the package greenlet: pip install greenlet") from error
        self._greenlet = greenlet
        self._running: set[greenlet.greenlet] = set()
        self.num_slices = len(blocks)
        for block in blocks[1:]:
            block.register_forward_pre_hook(self._pause)

    def run(self, call: Callable[[], torch.Tensor]) -> Generator[None, None, torch.Tensor]:
        """`call()`, in `num_slices` pieces. Closing the generator unwinds the call where it stands."""
        tower = self._greenlet.greenlet(call)
        self._running.add(tower)
        try:
            result = tower.switch()
            while not tower.dead:
                yield
                result = tower.switch()
            return result
        finally:
            self._running.discard(tower)
            tower.throw()  # GreenletExit into a paused call; nothing happens to one that has ended

    def _pause(self, *_: Any) -> None:
        current = self._greenlet.getcurrent()
        if current in self._running:
            assert current.parent is not None, "only the thread's main greenlet has no parent"
            current.parent.switch()

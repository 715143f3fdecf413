"""Who is alive and where: among the running or in the queue, both in order of priority. Knows no tokens and no step."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from operator import attrgetter

from backend.sched.sequence import SeqState, Sequence


class Roster:
    """All living sequences. `running` and `waiting` are for reading, most urgent first."""

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._seqs: dict[str, Sequence] = {}
        self._background: dict[str, Sequence] = {}  # those that may still be promoted

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._seqs

    def __getitem__(self, request_id: str) -> Sequence:
        return self._seqs[request_id]

    @property
    def alive(self) -> Collection[Sequence]:
        """Everyone."""
        return self._seqs.values()

    def add(self, seq: Sequence) -> None:
        """Put a new sequence into the queue."""
        self._seqs[seq.request_id] = seq
        if seq.is_background:
            self._background[seq.request_id] = seq
        insort(self.waiting, seq, key=_priority)

    def let_in(self, seq: Sequence, step_id: int) -> None:
        """Move one from the queue to the running."""
        seq.move_to(SeqState.RUNNING, step_id)
        self.waiting.remove(seq)
        insort(self.running, seq, key=_priority)

    def preempt(self, seq: Sequence, step_id: int) -> None:
        """Move one from the running to the queue; its blocks are free, and all of it is to be computed again."""
        seq.rewind()
        seq.move_to(SeqState.PREEMPTED, step_id)
        self.running.remove(seq)
        insort(self.waiting, seq, key=_priority)

    def retire(self, seq: Sequence, step_id: int) -> None:
        """Forget one; what the prefix index knows of its blocks stays until they are taken."""
        (self.waiting if seq.is_queued else self.running).remove(seq)
        seq.move_to(SeqState.FINISHED, step_id)
        seq.table.release()
        del self._seqs[seq.request_id]
        self._background.pop(seq.request_id, None)

    def promote_starved(self, step_id: int, aging_steps: int) -> None:
        """Background ones that got nothing for so many steps count as interactive from now on."""
        starved = [seq for seq in self._background.values() if step_id - seq.served_step >= aging_steps]
        for seq in starved:
            seq.is_promoted = True
            del self._background[seq.request_id]
        if starved:
            for seqs in (self.running, self.waiting):
                seqs.sort(key=_priority)


_priority = attrgetter("priority")

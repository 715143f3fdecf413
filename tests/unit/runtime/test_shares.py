"""Tasks shared by threads: each is computed once and in its phase, whoever is late, absent or the only one."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("numba")

from backend.runtime.native.shares import TALLY_BYTES, settle, take, take_next
from backend.runtime.native.vectors import compiled

NUM_PHASES, NUM_TASKS = 200, 7


@compiled
def _walk(tally, seen, sums):  # noqa: ANN001, ANN202
    """Each task counts itself, and adds up what it sees of the phase before."""
    for phase in range(len(seen)):
        task = take(tally)
        while task < seen.shape[1]:
            seen[phase, task] += 1
            if phase > 0:
                sums[phase, task] = seen[phase - 1].sum()
            task = take_next(tally)
        settle(tally, seen.shape[1])
        tally += TALLY_BYTES


def walk(delays_s: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Threads that start so many seconds late go through all phases."""
    tallies = np.zeros((NUM_PHASES, TALLY_BYTES), np.int8)
    seen, sums = np.zeros((2, NUM_PHASES, NUM_TASKS), np.int64)

    def run(delay_s: float) -> None:
        time.sleep(delay_s)
        _walk(tallies.ctypes.data, seen, sums)

    threads = [threading.Thread(target=run, args=(delay_s,)) for delay_s in delays_s]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen, sums


@pytest.mark.parametrize("delays_s", [[0.0], [0.0, 0.0], [0.0] * 5, [0.0, 0.2]], ids=["alone", "two", "five", "late"])
def test_every_task_is_computed_once_and_after_the_phase_before(delays_s: list[float]) -> None:
    seen, sums = walk(delays_s)
    assert (seen == 1).all()
    assert (sums[1:] == NUM_TASKS).all(), "a phase began before the one before was finished"

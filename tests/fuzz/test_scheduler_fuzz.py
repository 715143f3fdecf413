"""The scheduler under random traces: see `player.play` for what is checked after every step.

A failure names its seed; `python -m tests.fuzz.replay SEED` plays it again, step by step.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.sched import scheduler
from backend.sched.booking import Booking
from backend.sched.sequence import Sequence
from tests.fuzz.player import Outcome, play
from tests.fuzz.traces import make_trace

DIGEST_SEEDS = range(60)


def play_seed(seed: int) -> Outcome:
    """Play one seed; a failure says which."""
    try:
        return play(make_trace(seed))
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}; replay with: python -m tests.fuzz.replay {seed}") from error


def digest(seeds: range) -> str:
    """All steps and events of `seeds` in one number."""
    outcomes = [play_seed(seed) for seed in seeds]
    return hashlib.sha256(repr([(outcome.steps, outcome.events) for outcome in outcomes]).encode()).hexdigest()


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_random_traces(first: int) -> None:
    outcomes = [play_seed(seed) for seed in range(first, first + 100)]
    # A suite that never preempts, hits or encodes again would prove little.
    assert sum(outcome.num_preemptions for outcome in outcomes) > 5
    assert sum(outcome.num_hit_tokens for outcome in outcomes) > 1000
    assert sum(outcome.num_encoded for outcome in outcomes) > 100
    assert sum(outcome.num_reencoded for outcome in outcomes) > 5
    assert sum(outcome.num_together for outcome in outcomes) > 10
    assert sum(outcome.num_rejected for outcome in outcomes) > 20
    # Guesses that are right, and guesses that are wrong.
    num_drafts, num_accepted = (sum(getattr(o, name) for o in outcomes) for name in ("num_drafts", "num_accepted"))
    assert num_accepted > 200
    assert num_drafts - num_accepted > 300
    # Steps made before the one in flight was applied, and tokens that came after an end.
    assert sum(outcome.num_ahead for outcome in outcomes) > 500
    assert sum(outcome.num_thrown_away for outcome in outcomes) > 10
    assert first or sum(outcome.num_by_time for outcome in outcomes) > 3


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 11000, 1000))
def test_many_random_traces(first: int) -> None:
    for seed in range(first, first + 1000):
        play_seed(seed)


def test_same_seed_gives_the_same_steps() -> None:
    assert digest(DIGEST_SEEDS) == digest(DIGEST_SEEDS)


def test_steps_do_not_depend_on_hash_seeds() -> None:
    """Sets and dictionaries of strings must not leak their order into a step."""
    code = "from tests.fuzz.test_scheduler_fuzz import *; print(digest(DIGEST_SEEDS))"
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {digest(DIGEST_SEEDS) + "\n"}


def test_short_ways_lead_where_the_long_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running answers are booked and told in fewer words: the steps and all that is said must be the same without."""
    seeds = range(150)
    quick = digest(seeds)
    taken = {"booked": 0, "told": 0}

    def book_the_long_way(booking: Booking, seq: Sequence, num_tokens: int) -> bool:
        taken["booked"] += 1
        return False

    def tell_the_long_way(seq: Sequence, token_ids: tuple[int, ...], context_len: int) -> bool:
        taken["told"] += 1
        return False

    monkeypatch.setattr(Booking, "try_decode", book_the_long_way)
    monkeypatch.setattr(scheduler, "goes_on_with", tell_the_long_way)
    assert digest(seeds) == quick
    assert min(taken.values()) > 1000

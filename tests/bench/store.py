"""Times the event store at 100,000 events: `python -m tests.bench.store [NUM_EVENTS]`. Prints one table.

What the page asks: the newest page, pages further down, one camera's, and searches for common, rare and half-typed
words; the median and the longest of 30 runs each, in milliseconds.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from sqlalchemy import create_engine

from pipeline.config import RetentionConfig
from pipeline.query import EventQuery
from pipeline.retention import expire
from pipeline.schema import EVENTS
from pipeline.store import DATABASE, EventStore, _to_row
from tests.unit.pipeline.test_jsonl import OK_EVENT

PAGE = 40
SUBJECTS = ("a man", "a woman", "two people", "a child", "three men", "a cyclist", "a delivery driver")
DOINGS = ("walks", "stands", "is talking", "rides a bicycle", "carries a box", "runs", "sits on a bench")
PLACES = ("near the gate", "on the street", "beside a red car", "in front of the door", "under a tree")


def fill(data_dir: Path, num_events: int) -> None:
    """Rows alone: pictures would take minutes and no query reads them."""
    rolls = random.Random(3)
    EventStore(data_dir).close()
    rows = []
    for number in range(num_events):
        caption = f"{rolls.choice(SUBJECTS)} {rolls.choice(DOINGS)} {rolls.choice(PLACES)}, number {number % 9973}."
        event = replace(
            OK_EVENT,
            event_id=f"e{number}",
            camera=f"camera {rolls.randrange(8)}",
            caption=caption.capitalize(),
            t_wall=1_700_000_000.0 + number * 20,
        )
        rows.append({**_to_row(event), "jpeg_bytes": 0})
    with create_engine(f"sqlite:///{data_dir / DATABASE}").begin() as connection:
        connection.execute(EVENTS.insert(), rows)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Median and longest, in milliseconds."""
    times = []
    for _ in range(30):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times), max(times)


def main(num_events: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        fill(data_dir, num_events)
        began = time.perf_counter()
        store = EventStore(data_dir)
        print(f"{num_events} events; opened in {(time.perf_counter() - began) * 1e3:.0f} ms")
        middle = f"e{num_events // 2}"
        asked: dict[str, Callable[[], object]] = {
            "the newest page": lambda: store.recent(PAGE),
            "a page half-way down": lambda: store.recent(PAGE, before=middle),
            "one camera's newest": lambda: store.recent(PAGE, camera="camera 3"),
            "search: man": lambda: store.search("man", PAGE),
            "search: red car": lambda: store.search("red car", PAGE),
            "search: number 4711": lambda: store.search("number 4711", PAGE),
            "search: b": lambda: store.search("b", PAGE),
            "search: nothing found": lambda: store.search("zebra", PAGE),
            "search: woman, one camera": lambda: store.find(EventQuery(words="woman", camera="camera 3"), PAGE),
            "search, a page half-way down": lambda: store.find(EventQuery(words="man"), PAGE, before=middle),
            "related to a question": lambda: store.related("who stood beside the red car", 8),
        }
        print(f"{'query':<30} {'median ms':>10} {'longest':>8}")
        for title, call in asked.items():
            mid, longest = timed(call)
            print(f"{title:<30} {mid:10.1f} {longest:8.1f}")
        began = time.perf_counter()
        num_gone = expire(store, RetentionConfig(days=1.0, max_gb=None), 1_700_000_000.0 + num_events * 20)
        print(f"retention: {num_gone} events removed in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)

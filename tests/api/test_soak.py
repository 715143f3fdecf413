"""A soak: many clients, a tiny KV pool, a tiny encoder cache, and nothing left behind.

The long run takes the minutes that WATCHWORD_LONG_MINUTES names, ten by default.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend import bounds
from backend.bounds import BLOCK_SIZE
from backend.config import EngineConfig
from backend.models.registry import load
from backend.runtime.kv_pool import bytes_per_block, spare_bytes
from backend.service import build_service
from tests.api.conftest import Live, live
from tests.api.soak_clients import Crowd, picture_uri
from tests.minutes import long_minutes

MIB = 1 << 20
NUM_BLOCKS = 36
"""One context of 512 tokens and a little more: several running requests press each other out."""

MAX_GROWTH_BYTES = 64 * MIB
QUESTION: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": picture_uri(1)}},
                {"type": "text", "text": "What do you see?"},
            ],
        }
    ],
    "temperature": 0,
    "max_tokens": 24,
}


class Memory:
    """This process's resident bytes, read twice a second by a thread."""

    def __init__(self) -> None:
        self.readings: list[int] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        process = psutil.Process()
        while not self._is_over.wait(0.5):
            self.readings.append(process.memory_info().rss)

    @property
    def growth(self) -> int:
        """Bytes by which the last quarter's peak is above the second quarter's; the first warms up."""
        quarter = len(self.readings) // 4
        return max(self.readings[-quarter:]) - max(self.readings[quarter : 2 * quarter])


@pytest.fixture
def tight(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A server with room for little."""
    path = str(checkpoint("smolvlm"))
    adapter = load(path, device="cpu", dtype="float32")
    num_bytes = NUM_BLOCKS * bytes_per_block(adapter.spec, BLOCK_SIZE, adapter.dtype) + spare_bytes(adapter.dtype)
    # The encoder cache then holds the two largest pictures.
    monkeypatch.setattr(bounds, "ENCODER_CACHE_BYTES", 1)
    config = EngineConfig(
        model=path,
        served_model_name="tiny",
        device="cpu",
        quantization="none",
        max_model_len=512,
        max_num_seqs=8,
        max_num_batched_tokens=48,
        max_num_waiting=12,
        kv_cache_memory_bytes=num_bytes,
    )
    with live(build_service(config, path, lambda line: None)) as server:
        yield server


def soak(server: Live, minutes: float, seed: int) -> tuple[Crowd, Memory]:
    """Let a crowd at the server; then nothing of it may be left."""
    with server.http() as http:
        before = http.post("/v1/chat/completions", json=QUESTION).json()["choices"]
    crowd = Crowd(server.root, time.monotonic() + 60 * minutes, seed=seed)
    with Memory() as memory:
        crowd.run()
    engine = server.service.engine
    server.wait_until(lambda: not engine._waiters and not engine._scheduler.has_work() and not engine._inbox, 30)
    check_nothing_left(server)
    with server.http() as http:
        after = http.post("/v1/chat/completions", json=QUESTION).json()["choices"]
    assert after == before, "the same question has another answer now"
    return crowd, memory


def check_nothing_left(server: Live) -> None:
    """No request, no block, no half-run encoder; and the cache holds what the books say."""
    engine = server.service.engine
    stats, scheduler, encoders = engine.stats(), engine._scheduler, engine._runner._encoders  # type: ignore[attr-defined]
    scheduler.check()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert encoders._paused == {}
    entries = scheduler._ledger._entries
    assert set(encoders._resident) == set(entries)
    assert all(entry.is_resident for entry in entries.values())
    assert stats.encoder_embeds_used == sum(len(rows) for rows in encoders._resident.values())
    assert stats.encoder_embeds_used <= stats.encoder_embeds_total


def test_nothing_is_left_of_a_crowd(tight: Live) -> None:
    crowd, _ = soak(tight, 0.12, seed=1)
    assert crowd.seen["200"] > 10
    assert crowd.seen["left"] > 3


@pytest.mark.long
@pytest.mark.timeout(60 * long_minutes() + 300)
def test_nothing_is_left_of_a_crowd_in_the_long_run(tight: Live) -> None:
    crowd, memory = soak(tight, long_minutes(), seed=2)
    engine = tight.service.engine
    print(
        dict(crowd.seen),
        f"preemptions: {engine.stats().num_preemptions_total}, prefix hits: {engine.stats().prefix_hits_total},",
        f"growth: {memory.growth / MIB:.1f} MiB of {max(memory.readings) / MIB:.0f}",
    )
    for kind in ("200", "400", "404", "429", "left", "structured"):
        assert crowd.seen[kind] > 0, f"never seen: {kind}"
    assert engine.stats().num_preemptions_total > 0
    assert memory.growth < MAX_GROWTH_BYTES

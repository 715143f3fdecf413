"""Graphs of decode steps on a tape: what they write, what they are made of, and that a wrong one is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.graph_check import with_graphs
from backend.runtime.graphs import GraphedText, Replay, Size
from backend.runtime.kv_pool import KvPool
from backend.runtime.text_backend import TextBackend, make_text
from tests.tape import TapeRecorder

BLOCK, NUM_BLOCKS = 4, 40


@pytest.fixture(scope="module")
def adapter(checkpoint: Callable[[str], Path]) -> ModelAdapter:
    return load(str(checkpoint("llama")), device="cpu", dtype="float32")


@pytest.fixture
def pool(adapter: ModelAdapter) -> KvPool:
    """With one block more than sequences have."""
    made = KvPool(
        adapter.spec, num_blocks=NUM_BLOCKS + 1, block_size=BLOCK, dtype=torch.float32, device=torch.device("cpu")
    )
    made.fill_with_noise()
    return made


def graphs_of(adapter: ModelAdapter, pool: KvPool) -> tuple[GraphedText, TextBackend]:
    eager = make_text("torch", adapter, pool, attention="reference")
    graphed = GraphedText(eager, adapter, pool)
    with torch.inference_mode():
        for size in graphed.sizes:
            graphed.record(size, TapeRecorder())
    return graphed, eager


def step(
    adapter: ModelAdapter, *seqs: tuple[int, int, tuple[int, ...]]
) -> tuple[torch.Tensor, torch.Tensor, AttentionInputs]:
    """A step of sequences (new tokens, all tokens, blocks)."""
    starts, slots, positions = [0], [], []
    for num_tokens, kv_len, table in seqs:
        starts.append(starts[-1] + num_tokens)
        for i in range(kv_len - num_tokens, kv_len):
            slots.append(table[i // BLOCK] * BLOCK + i % BLOCK)
            positions.append(i)
    inputs = AttentionInputs(
        tuple(starts), tuple(n for _, n, _ in seqs), tuple(t for *_, t in seqs), torch.tensor(slots)
    )
    ids = torch.tensor([(7 * i + 3) % adapter.spec.vocab_size for i in range(starts[-1])])
    return adapter.embed(ids), torch.tensor([positions]), inputs


def test_growing_sequences_and_changing_batches_are_what_they_are_without(adapter: ModelAdapter, pool: KvPool) -> None:
    graphed, eager = graphs_of(adapter, pool)
    tables = ((3, 9, 1, 20), (5, 2, 30), (7, 8, 11, 12), (0,), (39, 38), (22, 23))
    with torch.inference_mode():
        for number in range(1, 12):
            seqs = [(1, number + i, tables[i]) for i in range(1 + number % 5) if number + i <= BLOCK * len(tables[i])]
            seqs.append((3, 3 + number // 3, tables[5]))  # a token with two guesses
            embeds, positions, inputs = step(adapter, *seqs)
            assert graphed.find_size(inputs)
            before = pool.keys.clone(), pool.values.clone()
            got = graphed.forward(embeds.clone(), positions, inputs).clone()
            after = pool.keys.clone(), pool.values.clone()
            pool.keys.copy_(before[0])
            pool.values.copy_(before[1])
            torch.testing.assert_close(got, eager.forward(embeds, positions, inputs), atol=1e-4, rtol=1e-4)
            for graph, own in zip(after, (pool.keys, pool.values), strict=True):
                live = slice(0, NUM_BLOCKS * BLOCK)
                torch.testing.assert_close(graph[:, live], own[:, live], atol=1e-4, rtol=1e-4)


def test_padding_writes_nothing_that_a_sequence_has(adapter: ModelAdapter, pool: KvPool) -> None:
    graphed, _ = graphs_of(adapter, pool)
    embeds, positions, inputs = step(adapter, *[(1, 6, (i, 20 + i)) for i in range(5)])
    assert graphed.find_size(inputs) == Size(8, 512)
    pool.fill_with_noise()
    before = pool.keys.clone()
    with torch.inference_mode():
        graphed.forward(embeds, positions, inputs)
    changed = (pool.keys != before).any(dim=-1).any(dim=0).nonzero()[:, 0].tolist()
    own = sorted(inputs.slots.tolist())
    assert changed[:5] == own
    assert changed[5:] == [NUM_BLOCKS * BLOCK], "the spare block alone"


def test_padding_forgets_what_was_there_before(adapter: ModelAdapter, pool: KvPool) -> None:
    """A row of numbers that are none poisons neither its neighbours nor the steps after it."""
    graphed, _ = graphs_of(adapter, pool)
    whole, small = (step(adapter, *[(1, 2, (i,)) for i in range(n)]) for n in (4, 3))
    with torch.inference_mode():
        expected = graphed.forward(*small).clone()
        poisoned = whole[0].clone()
        poisoned[3] = float("nan")
        hidden = graphed.forward(poisoned, *whole[1:])
        assert hidden[3].isnan().all()
        assert torch.equal(hidden[:3], expected)
        assert torch.equal(graphed.forward(*small), expected)


@pytest.mark.parametrize(
    ("seqs", "size"),
    [
        ([(1, 1, (0,))], Size(1, 512)),
        ([(1, 160, tuple(range(40)))] * 3, Size(4, 512)),
        ([(8, 8, (0, 1))], Size(8, 512)),
        ([(9, 9, (0, 1, 2))], None),  # a prompt
        ([(1, 1, (0,))] * 17, None),  # more than half as many rows as there are blocks
    ],
)
def test_a_step_takes_the_smallest_graph(
    seqs: list[tuple[int, int, tuple[int, ...]]], size: Size | None, adapter: ModelAdapter, pool: KvPool
) -> None:
    graphed, _ = graphs_of(adapter, pool)
    assert graphed.find_size(step(adapter, *seqs)[2]) == size


def checked(adapter: ModelAdapter, pool: KvPool, recorder: TapeRecorder) -> tuple[bool, str]:
    """Whether the graphs are used, and what is said of it."""
    said: list[str] = []
    eager = make_text("torch", adapter, pool, attention="sdpa")
    text = with_graphs(eager, adapter, pool, recorder, said.append)
    assert len(said) == 1
    assert "\n" not in said[0]
    assert not pool.keys.any(), "noise is left in the pool"
    return isinstance(text, GraphedText), said[0]


def test_good_graphs_are_used(adapter: ModelAdapter, pool: KvPool) -> None:
    assert checked(adapter, pool, TapeRecorder()) == (
        True,
        "Decode graphs: 5, for up to 16 tokens a step and contexts of up to 512",
    )


class Frozen(TapeRecorder):
    """Replays give what was there when it was recorded."""

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        output = work()
        return lambda: output


class Refusing(TapeRecorder):
    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")


@pytest.mark.parametrize(("recorder", "reason"), [(Frozen(), "is off by"), (Refusing(), "operation not permitted")])
def test_graphs_that_are_wrong_or_cannot_be_are_not_used(
    recorder: TapeRecorder, reason: str, adapter: ModelAdapter, pool: KvPool
) -> None:
    is_used, said = checked(adapter, pool, recorder)
    assert not is_used
    assert said.startswith("Decode graphs: none, every step runs eagerly; ")
    assert reason in said


def test_a_number_read_from_the_device_cannot_be_recorded() -> None:
    x = torch.ones(1)
    with pytest.raises(RuntimeError, match="not permitted"):
        TapeRecorder().record(lambda: x * float(x))


def wrong_tables(graphed: GraphedText) -> None:
    graphed._tables.fill_(0)


def wrong_positions(graphed: GraphedText) -> None:
    graphed._positions.zero_()


def one_key_too_many(graphed: GraphedText) -> None:
    graphed._last_keys += 1


@pytest.mark.parametrize("break_it", [wrong_tables, wrong_positions, one_key_too_many])
def test_the_check_finds(
    break_it: Callable[[GraphedText], None], adapter: ModelAdapter, pool: KvPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GraphedText._fill

    def fill(graphed: GraphedText, *args: torch.Tensor) -> None:
        original(graphed, *args)  # type: ignore[arg-type]
        break_it(graphed)

    monkeypatch.setattr(GraphedText, "_fill", fill)
    assert not checked(adapter, pool, TapeRecorder())[0]

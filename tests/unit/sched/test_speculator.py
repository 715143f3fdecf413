"""Whether guessing pays: odds learned from every token, the price of a row, and where an answer ends."""

from __future__ import annotations

from typing import Any

import pytest

from backend.sched.acceptance import Acceptance
from backend.sched.answer import cut_answer, num_open
from backend.sched.blocks import BlockPool
from backend.sched.cost import CostModel, StepCost
from backend.sched.sequence import Sequence
from backend.sched.speculator import Speculator, dealt, price
from backend.types.request import SamplingParams
from backend.types.result import FinishReason
from tests.fuzz.machine import Machine
from tests.unit.sched.builders import World, image, request, sequence

CHEAP = StepCost(base_s=0.010, sequence_s=0.0005, token_s=0.0005)
LOOP = [11, 12, 13, 14, 15, 16]


def cost(coefficients: StepCost = CHEAP) -> CostModel:
    model = CostModel()
    model.coefficients = coefficients
    return model


def decoding(*pieces: Any, outputs: tuple[int, ...], max_tokens: int = 100, name: str = "a") -> Sequence:
    """A sequence that has said `outputs` and waits to go on."""
    seq = sequence(request(name, *pieces, max_tokens=max_tokens), pool=BlockPool(1000, 4))
    for token_id in outputs:
        seq.table.grow_to(seq.total)
        seq.advance(seq.total, 0)
        seq.take((token_id,))
    return seq


def say(seq: Sequence, *token_ids: int) -> None:
    for token_id in token_ids:
        seq.table.grow_to(seq.total)
        seq.advance(seq.total, 0)
        seq.take((token_id,))


def test_what_repeats_is_guessed_deeper_and_deeper() -> None:
    speculator, seq = Speculator(6), decoding(LOOP * 3, outputs=(11, 12))
    lengths = []
    for token_id in (LOOP * 8)[2:]:
        guesses = speculator.propose((seq,), cost(), 1000).get("a", ())
        assert guesses == tuple(LOOP * 9)[seq.num_outputs : seq.num_outputs + len(guesses)]
        lengths.append(len(guesses))
        say(seq, token_id)
    assert 1 <= lengths[0] < 6
    assert lengths[-1] == 6
    assert lengths == sorted(lengths)


def test_wrong_guesses_stop_guessing_and_right_ones_begin_it_again() -> None:
    """Nothing is spent to find out: odds are learned while nothing is computed for them."""
    speculator = Speculator(4)
    seq = decoding([1, 2, 3] * 3, outputs=(1, 2), max_tokens=1000)
    assert speculator.propose((seq,), cost(), 1000)["a"][:1] == (3,)
    for fresh in range(100, 130):
        say(seq, fresh, 1, 2)
    assert speculator.propose((seq,), cost(), 1000) == {}
    for _ in range(40):
        say(seq, 50, 1, 2)
    assert speculator.propose((seq,), cost(), 1000)["a"][:1] == (50,)


def test_a_dear_row_is_not_worth_what_a_cheap_one_is() -> None:
    def num_guesses(coefficients: StepCost) -> int:
        seq = decoding(LOOP * 3, outputs=(11, 12, 13, 14))
        return len(Speculator(8).propose((seq,), cost(coefficients), 1000).get("a", ()))

    assert num_guesses(CHEAP) > num_guesses(StepCost(base_s=0.010, sequence_s=0.004)) > 0
    assert num_guesses(StepCost(base_s=0.0, sequence_s=0.010)) == 0, "a row costs a whole step"
    assert num_guesses(StepCost()) == 0, "nothing was measured yet"


def test_the_price_is_the_share_of_rows_in_a_decode_step() -> None:
    seqs = [decoding(5, outputs=(1,)) for _ in range(4)]
    rows_s = 4 * (0.001 + 0.001)
    coefficients = StepCost(base_s=0.008, sequence_s=0.001, token_s=0.001)
    assert price(seqs, coefficients) == pytest.approx(rows_s / (0.008 + rows_s))
    assert price(seqs[:1], coefficients) < price(seqs, coefficients)


def test_placeholders_of_images_are_no_words() -> None:
    """What an image follows is not guessed, and what stands before it is guessed no further."""
    picture = image("k", 6)
    ends_in_image = decoding([1, 2], picture, [3], outputs=(1, 2))
    assert Speculator(6).propose((ends_in_image,), cost(), 1000) == {}
    goes_to_image = decoding(LOOP, picture, [3], outputs=tuple(LOOP[:4]))
    assert Speculator(6).propose((goes_to_image,), cost(), 1000) == {"a": tuple(LOOP[4:])}


def test_a_long_prompt_is_read_in_portions() -> None:
    speculator, seq = Speculator(4), decoding(LOOP * 200, outputs=(11, 12))
    assert speculator.propose((seq,), cost(), 5000) == {}
    say(seq, 13)
    assert speculator.propose((seq,), cost(), 5000) == {}
    say(seq, 14)
    assert speculator.propose((seq,), cost(), 5000)["a"] == (15, 16, 11, 12)


def test_no_guess_lies_beyond_the_end_of_the_answer() -> None:
    def num_guesses(max_tokens: int, context_len: int) -> int:
        seq = decoding(LOOP * 3, outputs=tuple(LOOP), max_tokens=max_tokens)
        return len(Speculator(8).propose((seq,), cost(), context_len).get("a", ()))

    assert num_guesses(7, 1000) == 0, "one token is left, and it is no guess"
    assert num_guesses(9, 1000) == 2
    assert num_guesses(100, 24 + 3) == 2


def test_off_is_off_and_history_is_not_guessed() -> None:
    seq = decoding(LOOP * 3, outputs=tuple(LOOP))
    assert Speculator(0).propose((seq,), cost(), 1000) == {}
    assert seq.guesser is None
    shaped = decoding(LOOP * 3, outputs=tuple(LOOP))
    object.__setattr__(shaped.request, "sampling", SamplingParams(100, presence_penalty=0.5))
    assert Speculator(4).propose((shaped,), cost(), 1000) == {}


def test_rates_follow_what_happens() -> None:
    shared = Acceptance(memory=0.99, trust=4.0)
    before = shared.rate(3)
    for number in range(400):
        shared.observe(3, number % 4 == 0)
    assert shared.rate(3) == pytest.approx(0.25, abs=0.05)
    assert shared.rate(2) < before, "other lengths are none the wiser"
    own = Acceptance(shared, memory=0.9, trust=4.0)
    assert own.rate(3) == shared.rate(3)
    for _ in range(20):
        own.observe(3, is_hit=True)
    assert own.rate(3) > 0.6 > shared.rate(3)


@pytest.mark.parametrize(
    ("token_ids", "kept", "reason"),
    [
        ((5,), (5,), None),
        ((5, 6, 7), (5, 6, 7), None),
        ((5, 6, 7, 8), (5, 6, 7, 8), FinishReason.LENGTH),
        ((5, 6, 7, 8, 9), (5, 6, 7, 8), FinishReason.LENGTH),
        ((5, 0, 7), (5,), FinishReason.STOP),
        ((0,), (), FinishReason.STOP),
        ((5, 6, 7, 8, 0), (5, 6, 7, 8), FinishReason.LENGTH),
    ],
)
def test_an_answer_is_cut_where_it_ends(
    token_ids: tuple[int, ...], kept: tuple[int, ...], reason: FinishReason | None
) -> None:
    seq = sequence(request("a", 3, max_tokens=4, stop=frozenset({0})))
    seq.table.grow_to(3)
    assert num_open(seq, 100) == 4
    seq.advance(3, 0)
    assert cut_answer(seq, token_ids, 100) == (kept, reason)
    assert cut_answer(seq, (5, 6), 4) == ((5,), FinishReason.LENGTH), "the context ends first"


@pytest.mark.parametrize("policy", ["stall-free", "split-fuse", "prefill-first", "latency-target"])
def test_a_copied_answer_takes_fewer_steps(policy: str) -> None:
    """The whole loop: what one answer repeats is guessed, and the answer is what it would be."""

    def run(num_speculative_tokens: int) -> tuple[int, list[int]]:
        world = World(policy, num_speculative_tokens=num_speculative_tokens)
        machine = Machine(base_s=0.02)
        made = request("copy", [31, 32, 33, 34, 35, 36, 37, 38] * 4, max_tokens=60)
        object.__setattr__(made.sampling, "seed", 2)
        world.submit(made)
        num_steps = 0
        while world.scheduler.has_work():
            step = world.step()
            world.scheduler.policy.observe(step, machine.time_s(step))
            num_steps += 1
        return num_steps, world.answer("copy")[0]

    (slow, plain), (fast, guessed) = run(0), run(6)
    assert guessed == plain
    assert len(plain) == 60
    assert fast < 0.7 * slow


def test_few_guesses_are_dealt_round_by_round_the_soonest_first() -> None:
    guesses = {"a": (1, 2, 3, 4), "b": (5,), "c": (6, 7, 8)}
    assert dealt(guesses, 0) == {}
    assert dealt(guesses, 2) == {"a": (1,), "b": (5,)}
    assert dealt(guesses, 6) == {"a": (1, 2, 3), "b": (5,), "c": (6, 7)}
    assert dealt(guesses, 99) == guesses

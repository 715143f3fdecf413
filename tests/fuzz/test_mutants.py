"""The fuzz is itself tested: each fault built into the scheduler here must be found by some trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest

import backend.sched.booking
import backend.sched.chunking
import backend.sched.scheduler
import backend.sched.speculator
from backend.sched.blocks import BlockKey, BlockPool, BlockTable, PrefixIndex
from backend.sched.encoder_ledger import EncoderLedger
from backend.sched.image_booking import Batching
from backend.sched.policy import PrefillFirst, StallFree, View
from backend.sched.scheduler import Scheduler
from backend.sched.sequence import SeqState, Sequence
from backend.sched.slice_costs import SliceCosts
from backend.sched.view import Lane
from backend.types.request import ImageInput
from backend.types.result import StepResult, TokenEvent
from backend.types.step import Chunk, EncodeSlice
from tests.fuzz.player import play
from tests.fuzz.traces import make_trace

MAX_TRACES = 400

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def release_first_block_twice(patch: Patch) -> None:
    original = BlockPool.release
    patch.setattr(BlockPool, "release", lambda pool, ids: original(pool, [*ids[:1], *ids]))


def forget_to_release(patch: Patch) -> None:
    """A cancelled or finished request keeps its last block."""
    patch.setattr(BlockTable, "release", lambda table: table._pool.release(table._block_ids[:-1]))


def ignore_images_in_block_keys(patch: Patch) -> None:
    original = Sequence.block_keys

    def block_keys(seq: Sequence, num_blocks: int) -> list[BlockKey]:
        spans, seq.spans = seq.spans, ()
        try:
            return original(seq, num_blocks)
        finally:
            seq.spans = spans

    patch.setattr(Sequence, "block_keys", block_keys)


def ignore_parents_in_block_keys(patch: Patch) -> None:
    patch.setattr(BlockKey, "digest", b"same")


def publish_failed_blocks(patch: Patch) -> None:
    """Blocks are known to the index before their content is."""
    original = Scheduler.apply

    def apply(scheduler: Scheduler, result: StepResult) -> tuple[TokenEvent, ...]:
        for seq in scheduler._roster.running:
            seq.table.publish(seq.block_keys(seq.computed // seq.table.block_size))
        return original(scheduler, result)

    patch.setattr(Scheduler, "apply", apply)


def publish_one_block_too_many(patch: Patch) -> None:
    original = Sequence.block_keys
    patch.setattr(
        Sequence,
        "block_keys",
        lambda seq, n: original(seq, min(n + 1, seq.total // seq.table.block_size) if seq.computed else n),
    )


def keep_overwritten_blocks_in_the_index(patch: Patch) -> None:
    patch.setattr(PrefixIndex, "forget", lambda index, block_id: None)


def share_without_reference(patch: Patch) -> None:
    patch.setattr(BlockPool, "share", lambda pool, ids: None)


def share_the_last_token(patch: Patch) -> None:
    """A fully cached prompt would have nothing left to compute."""

    def find_prefix(seq: Sequence, pool: BlockPool) -> list[int]:
        return pool.index.find(seq.block_keys(seq.total // pool.block_size))

    patch.setattr(backend.sched.scheduler, "find_prefix", find_prefix)


def skip_a_decode(patch: Patch) -> None:
    original = StallFree.lanes

    def lanes(policy: StallFree, view: View) -> Any:
        decodes, prompts = original(policy, view)
        return (type(decodes)(decodes.seqs[1:], decodes.tokens), prompts)

    patch.setattr(StallFree, "lanes", lanes)


def prompts_before_decodes(patch: Patch) -> None:
    original = StallFree.lanes
    patch.setattr(StallFree, "lanes", lambda policy, view: original(policy, view)[::-1])


def preempt_without_rewinding(patch: Patch) -> None:
    patch.setattr(Sequence, "rewind", lambda seq: seq.table.release())


def preempt_whoever_is_booked(patch: Patch) -> None:
    patch.setattr(backend.sched.booking.Booking, "holds", lambda draft, seq: False)


def admit_while_short_of_blocks(patch: Patch) -> None:
    """R3: without it prefill-first preempts and admits the same request for ever."""
    patch.setattr(backend.sched.scheduler, "has_blocks_for", lambda seq, hit, running, pool: True)


def stop_the_lane_at_the_first_refusal(patch: Patch) -> None:
    """R1, and worse: nobody is asked after a running sequence that got nothing."""
    original = Scheduler._book

    def book(scheduler: Scheduler, seq: Sequence, soft_room: int, draft: backend.sched.booking.Booking) -> None:
        if not getattr(draft, "is_closed", False):
            original(scheduler, seq, soft_room, draft)
        draft.is_closed = not draft.holds(seq)  # type: ignore[attr-defined]

    patch.setattr(Scheduler, "_book", book)


def use_images_too_early(patch: Patch) -> None:
    patch.setattr(EncoderLedger, "is_resident", lambda ledger, key: key in ledger)


def evict_images_in_use(patch: Patch) -> None:
    original = EncoderLedger.try_reserve

    def try_reserve(
        ledger: EncoderLedger, image: ImageInput, *, may_take_pinned: bool, in_use: Collection[str]
    ) -> bool:
        return original(ledger, image, may_take_pinned=may_take_pinned, in_use=())

    patch.setattr(EncoderLedger, "try_reserve", try_reserve)


def evict_what_the_step_encodes(patch: Patch) -> None:
    """Only what its chunks read, which is resident, is safe."""
    original = EncoderLedger.try_reserve

    def try_reserve(
        ledger: EncoderLedger, image: ImageInput, *, may_take_pinned: bool, in_use: Collection[str]
    ) -> bool:
        resident = [key for key in in_use if ledger.is_resident(key)]
        return original(ledger, image, may_take_pinned=may_take_pinned, in_use=resident)

    patch.setattr(EncoderLedger, "try_reserve", try_reserve)


def never_take_pinned_images(patch: Patch) -> None:
    """Two sequences that each hold what the other needs wait for ever."""
    original = EncoderLedger.try_reserve

    def try_reserve(
        ledger: EncoderLedger, image: ImageInput, *, may_take_pinned: bool, in_use: Collection[str]
    ) -> bool:
        return original(ledger, image, may_take_pinned=False, in_use=in_use)

    patch.setattr(EncoderLedger, "try_reserve", try_reserve)


def forget_to_report_evictions(patch: Patch) -> None:
    patch.setattr(EncoderLedger, "take_evictions", lambda ledger: ())


def keep_failed_images(patch: Patch) -> None:
    patch.setattr(EncoderLedger, "drop", lambda ledger, key: None)


def overfill_the_encoder_cache(patch: Patch) -> None:
    patch.setattr(EncoderLedger, "num_embeds", 0)


def shift_image_rows(patch: Patch) -> None:
    """Rows are counted from the chunk instead of from the image."""
    original = Sequence._embeds

    def embeds(seq: Sequence, start: int, end: int) -> Iterable[Any]:
        return (type(e)(e.key, 0, e.dest, e.length) for e in original(seq, start, end))

    patch.setattr(Sequence, "_embeds", embeds)


def shift_positions(patch: Patch) -> None:
    original = Sequence._positions
    patch.setattr(Sequence, "_positions", lambda seq, start, end: original(seq, start, end)[:1])


def split_atomic_spans(patch: Patch) -> None:
    def chunk_end(seq: Sequence, soft: int, hard: int, is_resident: Callable[[str], bool]) -> int:
        original_spans = seq.spans
        seq.spans = tuple(type(s)(s.start, s.length, s.key, s.offset) for s in original_spans)
        try:
            return backend.sched.chunking.chunk_end(seq, soft, hard, is_resident)
        finally:
            seq.spans = original_spans

    patch.setattr(backend.sched.scheduler, "chunk_end", chunk_end)


def ignore_the_memory_bound(patch: Patch) -> None:
    patch.setattr(backend.sched.booking.Booking, "hard_room", 10**6)

    def lanes(policy: PrefillFirst, view: View) -> Any:
        return (Lane(view.decodes, view.token_budget), Lane(view.prompts, view.token_budget))

    patch.setattr(PrefillFirst, "lanes", lanes)


def count_outputs_from_zero_after_preemption(patch: Patch) -> None:
    original = Sequence.advance

    def advance(seq: Sequence, end: int, step_id: int, drafts: tuple[int, ...] = ()) -> Chunk:
        chunk = original(seq, end, step_id, drafts)
        return chunk._replace(sample_index=0 if not chunk.is_decode else chunk.sample_index)

    patch.setattr(Sequence, "advance", advance)


def lose_stop_tokens(patch: Patch) -> None:
    original = backend.sched.scheduler.cut_answer

    def cut_answer(seq: Sequence, token_ids: tuple[int, ...], context_len: int) -> Any:
        seq.request = replace(seq.request, sampling=replace(seq.request.sampling, stop_token_ids=frozenset()))
        return original(seq, token_ids, context_len)

    patch.setattr(backend.sched.scheduler, "cut_answer", cut_answer)


def sample_one_too_many(patch: Patch) -> None:
    original = Sequence.num_outputs.fget
    assert original is not None
    patch.setattr(Sequence, "num_outputs", property(lambda seq: max(0, original(seq) - 1)))


def encode_at_full_speed_beside_decodes(patch: Patch) -> None:
    original = backend.sched.scheduler.book_images

    def book_images(running: Any, ledger: Any, batching: Any, num_slices: int, in_use: Any, step_id: int) -> Any:
        return original(running, ledger, batching, 9, in_use, step_id)

    patch.setattr(backend.sched.scheduler, "book_images", book_images)


def encode_unlike_images_together(patch: Patch) -> None:
    patch.setattr(ImageInput, "is_alike", lambda image, other: bool(image.layout))


def encode_too_many_together(patch: Patch) -> None:
    patch.setattr(SliceCosts, "batch_len", lambda costs, image, num_images: 9)
    patch.setattr(Scheduler, "_batching", property(lambda scheduler: Batching(9, scheduler.policy.cost.slices)))


def leave_a_mate_behind(patch: Patch) -> None:
    """From the second slice on, a batch goes on without its last image."""
    original = EncoderLedger.advance

    def advance(ledger: EncoderLedger, key: str, max_slices: int) -> EncodeSlice:
        encode = original(ledger, key, max_slices)
        return replace(encode, mates=encode.mates[:-1]) if encode.first_slice else encode

    patch.setattr(EncoderLedger, "advance", advance)


def forget_that_mates_are_resident(patch: Patch) -> None:
    original = EncoderLedger.complete

    def complete(ledger: EncoderLedger, key: str) -> None:
        if all(not ledger.is_resident(mate.key) for mate in ledger.mates_of(key)):
            original(ledger, key)

    patch.setattr(EncoderLedger, "complete", complete)


def keep_the_evicted_in_their_batch(patch: Patch) -> None:
    def remove(ledger: EncoderLedger, key: str) -> None:
        del ledger._entries[key]

    patch.setattr(EncoderLedger, "_remove", remove)


def accept_one_guess_too_many(patch: Patch) -> None:
    """The token after the last guess that came true counts as one, although it was drawn and not computed."""
    original = Sequence.take

    def take(seq: Sequence, token_ids: tuple[int, ...]) -> None:
        original(seq, token_ids)
        seq.computed += len(token_ids) > 1

    patch.setattr(Sequence, "take", take)


def count_rejected_guesses_as_computed(patch: Patch) -> None:
    original = Sequence.advance

    def advance(seq: Sequence, end: int, step_id: int, drafts: tuple[int, ...] = ()) -> Chunk:
        chunk = original(seq, end, step_id, drafts)
        seq.computed += len(drafts)
        return chunk

    patch.setattr(Sequence, "advance", advance)


def publish_blocks_with_rejected_guesses(patch: Patch) -> None:
    """A block is known to the index as soon as guesses have filled it, whether they came true or not."""
    original = Scheduler.apply

    def apply(scheduler: Scheduler, result: StepResult) -> tuple[TokenEvent, ...]:
        step, seqs = scheduler._in_flight[0]
        for seq, chunk in zip(seqs, step.chunks, strict=True):
            if chunk.num_drafts and scheduler._limits.enable_prefix_caching and seq.state is SeqState.RUNNING:
                tokens, keys = list(seq._tokens), list(seq._keys)
                seq._tokens[-1:] = chunk.drafts
                seq.table.publish(seq.block_keys(seq.total // seq.table.block_size))
                seq._tokens, seq._keys = tokens, keys
        return original(scheduler, result)

    patch.setattr(Scheduler, "apply", apply)


def forget_that_accepted_guesses_are_computed(patch: Patch) -> None:
    def take(seq: Sequence, token_ids: tuple[int, ...]) -> None:
        if token_ids:
            seq._tokens[-1:] = token_ids
            seq.num_awaited -= 1

    patch.setattr(Sequence, "take", take)


def guess_beyond_the_end(patch: Patch) -> None:
    patch.setattr(backend.sched.speculator, "num_open", lambda seq, context_len: 99)


def guess_one_beyond_the_end(patch: Patch) -> None:
    original = backend.sched.speculator.num_open
    patch.setattr(backend.sched.speculator, "num_open", lambda seq, context_len: original(seq, context_len) + 1)


def take_tokens_beyond_the_end(patch: Patch) -> None:
    """Whatever was sampled is told, also after a stop token."""
    original = backend.sched.scheduler.cut_answer

    def cut_answer(seq: Sequence, token_ids: tuple[int, ...], context_len: int) -> Any:
        reason = original(seq, token_ids, context_len)[1]
        return (token_ids if len(token_ids) > 1 else original(seq, token_ids, context_len)[0]), reason

    patch.setattr(backend.sched.scheduler, "cut_answer", cut_answer)


def lose_tokens_after_the_first(patch: Patch) -> None:
    original = backend.sched.scheduler.cut_answer
    patch.setattr(backend.sched.scheduler, "cut_answer", lambda seq, ids, n: original(seq, ids[:1], n))


def guess_without_blocks(patch: Patch) -> None:
    """Guesses take blocks that others count on, or that are not there."""
    patch.setattr(backend.sched.scheduler, "guess_room", lambda seq, num_guesses, running, pool: num_guesses)


def guess_beyond_the_budget(patch: Patch) -> None:
    """Guesses of the first take the token of the last."""
    patch.setattr(StallFree, "drafts", lambda policy, view: view.num_drafts)


def guess_placeholders(patch: Patch) -> None:
    patch.setattr(backend.sched.speculator, "_words", Sequence.known_tokens)


def repeat_the_position_of_the_token_before_guesses(patch: Patch) -> None:
    original = Sequence._positions

    def positions(seq: Sequence, start: int, end: int) -> Any:
        rows = original(seq, start, end)
        return tuple((*row[: seq.total - start], *[row[0]] * (end - seq.total)) for row in rows)

    patch.setattr(Sequence, "_positions", positions)


def take_what_is_awaited_last(patch: Patch) -> None:
    """Of two tokens in flight the first is put where the second belongs."""

    def take_one(seq: Sequence, token_id: int) -> None:
        seq._tokens[-1] = token_id
        seq.num_awaited -= 1

    patch.setattr(Sequence, "take_one", take_one)


def go_on_beyond_a_known_end(patch: Patch) -> None:
    """A step made ahead computes what comes after the last token that an answer may have."""
    patch.setattr(backend.sched.scheduler, "num_open", lambda seq, context_len: 99)


def publish_what_is_in_flight(patch: Patch) -> None:
    original = Scheduler._publish
    patch.setattr(Scheduler, "_publish", lambda scheduler, seq, _: original(scheduler, seq, seq.computed))


def preempt_while_tokens_are_awaited(patch: Patch) -> None:
    """Blocks that run short in a step made ahead are taken from others, as in any."""
    original = Scheduler._make_room

    def make_room(scheduler: Scheduler, *args: Any) -> int:
        in_flight, scheduler._in_flight = scheduler._in_flight, deque()
        try:
            return original(scheduler, *args)
        finally:
            scheduler._in_flight = in_flight

    patch.setattr(Scheduler, "_make_room", make_room)


MUTANTS: Seq[Mutant] = (
    release_first_block_twice,
    forget_to_release,
    ignore_images_in_block_keys,
    ignore_parents_in_block_keys,
    publish_failed_blocks,
    publish_one_block_too_many,
    keep_overwritten_blocks_in_the_index,
    share_without_reference,
    share_the_last_token,
    skip_a_decode,
    prompts_before_decodes,
    preempt_without_rewinding,
    preempt_whoever_is_booked,
    admit_while_short_of_blocks,
    stop_the_lane_at_the_first_refusal,
    use_images_too_early,
    evict_images_in_use,
    evict_what_the_step_encodes,
    never_take_pinned_images,
    forget_to_report_evictions,
    keep_failed_images,
    overfill_the_encoder_cache,
    shift_image_rows,
    shift_positions,
    split_atomic_spans,
    ignore_the_memory_bound,
    count_outputs_from_zero_after_preemption,
    lose_stop_tokens,
    sample_one_too_many,
    encode_at_full_speed_beside_decodes,
    encode_unlike_images_together,
    encode_too_many_together,
    leave_a_mate_behind,
    forget_that_mates_are_resident,
    keep_the_evicted_in_their_batch,
    accept_one_guess_too_many,
    count_rejected_guesses_as_computed,
    publish_blocks_with_rejected_guesses,
    forget_that_accepted_guesses_are_computed,
    guess_beyond_the_end,
    guess_one_beyond_the_end,
    take_tokens_beyond_the_end,
    lose_tokens_after_the_first,
    guess_without_blocks,
    guess_beyond_the_budget,
    guess_placeholders,
    repeat_the_position_of_the_token_before_guesses,
    take_what_is_awaited_last,
    go_on_beyond_a_known_end,
    publish_what_is_in_flight,
    preempt_while_tokens_are_awaited,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_fuzz_finds(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(MAX_TRACES):
        try:
            play(make_trace(seed))
        except (AssertionError, LookupError) as error:
            print(f"found by seed {seed}: {error!r}")
            return
    pytest.fail(f"{MAX_TRACES} traces did not notice")

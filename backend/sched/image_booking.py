"""Which images a step encodes, how far, and which of them together.

Images of one layout that wait at the same time begin as one batch where the cost model says that this pays; those that
come later begin their own. Nobody waits for company.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from backend.sched.encoder_ledger import EncoderLedger
from backend.sched.sequence import Sequence
from backend.sched.slice_costs import SliceCosts
from backend.types.request import ImageInput
from backend.types.step import EncodeSlice


@dataclass(frozen=True, slots=True)
class Batching:
    """How many images may be encoded together at most, and what tells whether it pays."""

    limit: int
    costs: SliceCosts


@dataclass(frozen=True, slots=True)
class _Want:
    """An image that somebody needs: the most urgent one, and whether it is needed next."""

    image: ImageInput
    seq: Sequence
    is_next: bool


def images_to_encode(running: Iterable[Sequence], ledger: EncoderLedger, batching: Batching) -> tuple[EncodeSlice, ...]:
    """What is left to encode of each image, or batch, that `running` (most urgent first) need, each once."""
    groups = _groups(_wants(running).values(), ledger, batching)
    return tuple(ledger.rest_of(first.image, tuple(mate.image for mate in mates)) for first, *mates in groups)


def book_images(
    running: Seq[Sequence],
    ledger: EncoderLedger,
    batching: Batching,
    num_slices: int,
    in_use: Collection[str],
    step_id: int,
) -> tuple[EncodeSlice, ...]:
    """Give `num_slices` encoder slices to the images that `running` (most urgent first) need, each image once.

    The image that a sequence needs next may push out pinned ones of less urgent sequences, so that the most urgent
    sequence always gets on; images it needs later, and those that come along in a batch, are encoded ahead only where
    nobody's need is hurt.
    """
    wants = _wants(running)
    ledger.pin(tuple(wants))
    # What this step encodes may go as little as what it reads: its evictions come first.
    busy = dict.fromkeys(in_use)
    for key in in_use:
        ledger.touch(key)
    encodes: list[EncodeSlice] = []
    for first, *mates in _groups(wants.values(), ledger, batching):
        if num_slices == 0:
            break
        image = first.image
        if image.key not in ledger:
            if not ledger.try_reserve(image, may_take_pinned=first.is_next, in_use=busy):
                continue
            for mate in mates:
                if ledger.try_reserve(mate.image, may_take_pinned=False, in_use=busy):
                    ledger.join(image.key, mate.image)
        encodes.append(ledger.advance(image.key, num_slices))
        num_slices -= encodes[-1].num_slices
        for image in encodes[-1].images:
            busy[image.key] = None
            wants[image.key].seq.served_step = step_id
    return tuple(encodes)


def _wants(running: Iterable[Sequence]) -> dict[str, _Want]:
    """Every image that `running` still need, by key, the most urgent first."""
    wants: dict[str, _Want] = {}
    for seq in running:
        if seq.images:
            for position, image in enumerate(seq.pending_images()):
                known = wants.get(image.key)
                if known is None:
                    wants[image.key] = _Want(image, seq, position == 0)
                elif position == 0 and not known.is_next:
                    wants[image.key] = _Want(image, known.seq, True)
    return wants


def _groups(wants: Iterable[_Want], ledger: EncoderLedger, batching: Batching) -> Iterator[tuple[_Want, ...]]:
    """Those of `wants` that have slices left, together what is, or would be, encoded together.

    Only sequences of one class share a batch: a chat's image is not to wait for cameras.
    """
    left = {want.image.key: want for want in wants if not ledger.is_encoded(want.image.key)}
    while left:
        first = left.pop(next(iter(left)))
        mates: list[_Want] = []
        if first.image.key in ledger:
            mates = [left[mate.key] for mate in ledger.mates_of(first.image.key) if mate.key in left]
        elif batching.limit > 1:
            alike = [want for key, want in left.items() if key not in ledger and _may_share(first, want)]
            most = min(1 + len(alike), batching.limit)
            mates = alike[: batching.costs.batch_len(first.image, most) - 1]
        for mate in mates:
            del left[mate.image.key]
        yield (first, *mates)


def _may_share(first: _Want, other: _Want) -> bool:
    return first.image.is_alike(other.image) and first.seq.is_background == other.seq.is_background

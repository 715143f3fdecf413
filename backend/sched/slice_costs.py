"""What encoder slices cost, learned slice by slice: a tower's stages differ, and so do pictures of different sizes.

Pictures are of one kind if they give as many embeddings in as many slices, so many of them in a batch. A slice that was
never timed is guessed from its neighbours, or from other kinds by how many embeddings a slice makes. From the same
figures follows how large a batch pays. Knows nothing of steps or of time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.types.request import ImageInput
from backend.types.step import EncodeSlice

_GAIN = 0.3
"""How far a timing moves what is known of its slice, which comes but once in a picture."""

_RATE_GAIN = 0.1

_MAX_RATIO = 3.0
"""A timing counts as at most so many times what was known, or as little as its inverse: one hiccup is not a trend."""

_MAX_KINDS = 64

_WORTH = 0.9
"""A batch pays if each of its images takes less than this share of what it takes alone."""

_LONGEST_S = 0.01
"""A batch whose slices take longer than this, and longer than one image's, would be felt."""

_NUM_TRIES = 3
"""Batches of a kind that are timed before it is judged: the first one often has to make things ready."""

_Kind = tuple[int, int, int]


@dataclass(slots=True)
class _Costs:
    """Seconds of each slice of one kind, None if never timed, and how many times the last slice was."""

    slices: list[float | None]
    num_ends: int = 0

    def known(self) -> list[float]:
        return [cost for cost in self.slices if cost is not None]


class SliceCosts:
    """Seconds of each slice, by kind of picture; at most 64 kinds, the longest unused is forgotten.

    `pace` multiplies all of them: it is for whoever sees from other work, too, how fast the machine is at the moment.
    """

    def __init__(self) -> None:
        self.pace = 1.0
        self._costs_by_kind: OrderedDict[_Kind, _Costs] = OrderedDict()
        self._rate_s: float | None = None

    def slice_s(self, image: ImageInput, index: int, num_images: int = 1) -> float | None:
        """Seconds of slice `index` of so many images like this; None while no slice of any picture was ever timed.

        A batch that was never timed counts as its images one after the other.
        """
        costs = self._costs_by_kind.get(_kind(image, num_images))
        if costs is not None:
            known_s = costs.slices[index]
            if known_s is not None:
                return known_s * self.pace
            timed = costs.known()
            return sum(timed) / len(timed) * self.pace
        if num_images > 1:
            alone_s = self.slice_s(image, index)
            return None if alone_s is None else num_images * alone_s
        return None if self._rate_s is None else self._rate_s * _size(image) * self.pace

    def batch_len(self, image: ImageInput, num_images: int) -> int:
        """How many of `num_images` like this one (at least one) to encode together: a power of two.

        The largest batch that pays, as far as is known; what is not known is tried.
        """
        length = 1 << (num_images.bit_length() - 1)
        while length > 1 and not self._pays(image, length):
            length //= 2
        return length

    def _pays(self, image: ImageInput, length: int) -> bool:
        together, alone = (self._costs_by_kind.get(_kind(image, n)) for n in (length, 1))
        if together is None or alone is None or together.num_ends < _NUM_TRIES:
            return True
        pairs = [(t, a) for t, a in zip(together.slices, alone.slices, strict=True) if t is not None and a is not None]
        is_quick = max(together.known()) <= max(_LONGEST_S, *alone.known())
        return is_quick and sum(t for t, _ in pairs) <= _WORTH * length * sum(a for _, a in pairs)

    def total_s(self, encodes: Iterable[EncodeSlice]) -> float:
        """Seconds of all these slices; what is unknown counts nothing."""
        return sum(self.slice_s(*one) or 0.0 for one in _slices(encodes))

    def num_within(self, encodes: Iterable[EncodeSlice], room_s: float) -> int | None:
        """How many of these slices, one after the other, end within `room_s`; at least one.

        None where no slice was ever timed.
        """
        number = 0
        for one in _slices(encodes):
            cost_s = self.slice_s(*one)
            if cost_s is None:
                return None
            room_s -= cost_s
            if room_s < 0.0:
                break
            number += 1
        return max(1, number)

    def observe(self, encodes: Sequence[EncodeSlice], elapsed_s: float) -> None:
        """Learn that these slices took `elapsed_s` together. Each gets the share that it was expected to have.

        No time at all teaches nothing: then it was the rest of the step that was misjudged.
        """
        if elapsed_s <= 0.0:
            return
        slices = list(_slices(encodes))
        expected = [self.slice_s(*one) or 0.0 for one in slices]
        total_s = sum(expected)
        is_known = total_s > 0.0
        if not is_known:
            expected, total_s = [1.0] * len(slices), float(len(slices))
        ratio = elapsed_s / total_s
        bounded = max(1.0 / _MAX_RATIO, min(_MAX_RATIO, ratio))
        for (image, index, num_images), expected_s in zip(slices, expected, strict=True):
            costs = self._costs(image, num_images)
            is_first = costs.slices[index] is None
            # Of a batch the first timing says little: it counts as no more than was expected, if anything was.
            first = min(bounded, 1.0) if num_images > 1 and is_known else ratio
            cost_s = expected_s * (first if is_first else 1.0 + _GAIN * (bounded - 1.0)) / self.pace
            costs.slices[index] = cost_s
            costs.num_ends += index == image.num_slices - 1
            rate_s = cost_s / _size(image) / num_images
            self._rate_s = rate_s if self._rate_s is None else self._rate_s + _RATE_GAIN * (rate_s - self._rate_s)

    def _costs(self, image: ImageInput, num_images: int) -> _Costs:
        kind = _kind(image, num_images)
        costs = self._costs_by_kind.setdefault(kind, _Costs([None] * image.num_slices))
        self._costs_by_kind.move_to_end(kind)
        if len(self._costs_by_kind) > _MAX_KINDS:
            self._costs_by_kind.popitem(last=False)
        return costs


def _kind(image: ImageInput, num_images: int) -> _Kind:
    return (image.num_embeds, image.num_slices, num_images)


def _size(image: ImageInput) -> float:
    """Embeddings that one slice makes, on average: tiles add slices, a larger picture makes each of them larger."""
    return image.num_embeds / image.num_slices


def _slices(encodes: Iterable[EncodeSlice]) -> Iterable[tuple[ImageInput, int, int]]:
    for encode in encodes:
        for index in range(encode.first_slice, encode.first_slice + encode.num_slices):
            yield encode.image, index, len(encode.images)

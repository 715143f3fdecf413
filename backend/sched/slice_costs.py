"""What encoder slices cost, learned slice by slice: a tower's stages differ, and so do pictures of different sizes.

Pictures are of one kind if they give as many embeddings in as many slices. A slice that was never timed is guessed from
its neighbours, or from other kinds by how many embeddings a slice makes. Knows nothing of steps or of time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from backend.types import EncodeSlice, ImageInput

_GAIN = 0.3
"""How far a timing moves what is known of its slice, which comes but once in a picture."""

_RATE_GAIN = 0.1

_MAX_RATIO = 3.0
"""A timing counts as at most so many times what was known, or as little as its inverse: one hiccup is not a trend."""

_MAX_KINDS = 64

_Kind = tuple[int, int]


class SliceCosts:
    """Seconds of each slice, by kind of picture; at most 64 kinds, the longest unused is forgotten.

    `pace` multiplies all of them: it is for whoever sees from other work, too, how fast the machine is at the moment.
    """

    def __init__(self) -> None:
        self.pace = 1.0
        self._costs_by_kind: OrderedDict[_Kind, list[float | None]] = OrderedDict()
        self._rate_s: float | None = None

    def slice_s(self, image: ImageInput, index: int) -> float | None:
        """Seconds of slice `index` of `image`; None while no slice of any picture was ever timed."""
        costs = self._costs_by_kind.get(_kind(image))
        if costs is not None:
            known_s = costs[index]
            if known_s is not None:
                return known_s * self.pace
            timed = [cost for cost in costs if cost is not None]
            return sum(timed) / len(timed) * self.pace
        return None if self._rate_s is None else self._rate_s * _size(image) * self.pace

    def total_s(self, encodes: Iterable[EncodeSlice]) -> float:
        """Seconds of all these slices; what is unknown counts nothing."""
        return sum(self.slice_s(image, index) or 0.0 for image, index in _slices(encodes))

    def num_within(self, encodes: Iterable[EncodeSlice], room_s: float) -> int | None:
        """How many of these slices, one after the other, end within `room_s`; at least one.

        None where no slice was ever timed.
        """
        number = 0
        for image, index in _slices(encodes):
            cost_s = self.slice_s(image, index)
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
        expected = [self.slice_s(image, index) or 0.0 for image, index in slices]
        total_s = sum(expected)
        if total_s <= 0.0:
            expected, total_s = [1.0] * len(slices), float(len(slices))
        ratio = elapsed_s / total_s
        bounded = max(1.0 / _MAX_RATIO, min(_MAX_RATIO, ratio))
        for (image, index), expected_s in zip(slices, expected, strict=True):
            costs = self._costs(image)
            is_first = costs[index] is None
            cost_s = expected_s * (ratio if is_first else 1.0 + _GAIN * (bounded - 1.0)) / self.pace
            costs[index] = cost_s
            rate_s = cost_s / _size(image)
            self._rate_s = rate_s if self._rate_s is None else self._rate_s + _RATE_GAIN * (rate_s - self._rate_s)

    def _costs(self, image: ImageInput) -> list[float | None]:
        kind = _kind(image)
        costs = self._costs_by_kind.setdefault(kind, [None] * image.num_slices)
        self._costs_by_kind.move_to_end(kind)
        if len(self._costs_by_kind) > _MAX_KINDS:
            self._costs_by_kind.popitem(last=False)
        return costs


def _kind(image: ImageInput) -> _Kind:
    return (image.num_embeds, image.num_slices)


def _size(image: ImageInput) -> float:
    """Embeddings that one slice makes, on average: tiles add slices, a larger picture makes each of them larger."""
    return image.num_embeds / image.num_slices


def _slices(encodes: Iterable[EncodeSlice]) -> Iterable[tuple[ImageInput, int]]:
    for encode in encodes:
        for index in range(encode.first_slice, encode.first_slice + encode.num_slices):
            yield encode.image, index

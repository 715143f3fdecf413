"""Which image embeddings exist, how far the unfinished ones are, and which may go: a ledger without tensors.

An image is here from its first encoder slice on, at its full size, counted in embeddings. It is *resident* once its
last slice has been computed, *pinned* while a running sequence still needs it, and *evictable* otherwise. Images that
join a batch have one progress, but come and go by themselves. The ledger does not know sequences: the scheduler names
the pinned keys, the most important first, before each step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from backend.types.request import ImageInput
from backend.types.step import EncodeSlice


@dataclass(slots=True)
class _Batch:
    """Images that are encoded together, nearly always one; those that are dropped are no longer among them."""

    images: list[ImageInput]
    num_scheduled: int = 0


@dataclass(slots=True)
class _Entry:
    image: ImageInput
    batch: _Batch
    is_resident: bool = False


class EncoderLedger:
    """The encoder cache's books: at most `capacity` embeddings, least recently used out first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._rank_by_key: dict[str, int] = {}
        self._evictions: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def num_embeds(self) -> int:
        """Embeddings that are resident or on their way."""
        return sum(entry.image.num_embeds for entry in self._entries.values())

    @property
    def has_unfinished(self) -> bool:
        """Whether an image is half encoded."""
        return any(not entry.is_resident for entry in self._entries.values())

    @property
    def has_evictions(self) -> bool:
        """Whether a step must name evicted keys."""
        return bool(self._evictions)

    def is_resident(self, key: str) -> bool:
        """Whether a chunk may use image `key`."""
        entry = self._entries.get(key)
        return entry is not None and entry.is_resident

    def is_pinned(self, key: str) -> bool:
        """Whether a running sequence needs image `key`."""
        return key in self._rank_by_key

    def is_encoded(self, key: str) -> bool:
        """Whether every slice of image `key` is scheduled (it is resident once they are computed)."""
        entry = self._entries.get(key)
        return entry is not None and entry.batch.num_scheduled == entry.image.num_slices

    def mates_of(self, key: str) -> tuple[ImageInput, ...]:
        """Those that image `key`, which is here, is encoded together with."""
        return tuple(image for image in self._entries[key].batch.images if image.key != key)

    def rest_of(self, image: ImageInput, mates: tuple[ImageInput, ...] = ()) -> EncodeSlice:
        """The slices of `image`, and of `mates` with it, that are not scheduled yet."""
        entry = self._entries.get(image.key)
        first = 0 if entry is None else entry.batch.num_scheduled
        return EncodeSlice(image, first, image.num_slices - first, mates)

    def pin(self, keys: Sequence[str]) -> None:
        """Pin exactly these, the most important first; whatever was pinned before is evictable again.

        Half-encoded images that are not among them are dropped at once: they hold activations and nobody waits.
        """
        self._rank_by_key = {key: rank for rank, key in enumerate(dict.fromkeys(keys))}
        for key in [k for k, entry in self._entries.items() if not entry.is_resident and not self.is_pinned(k)]:
            self._evict(key)

    def touch(self, key: str) -> None:
        """Note that image `key` was used just now."""
        self._entries.move_to_end(key)

    def try_reserve(self, image: ImageInput, *, may_take_pinned: bool, in_use: Collection[str]) -> bool:
        """Make room for `image` and enter it with no slice scheduled, or change nothing and return False.

        Evicts unpinned images, the least recently used first; with `may_take_pinned` then those pinned after `image`,
        the least important first. `in_use` (what this step's chunks read) stays.
        """
        victims: list[str] = []
        room = self.capacity - self.num_embeds
        for key in self._victims(image.key, may_take_pinned):
            if room >= image.num_embeds:
                break
            if key not in in_use:
                victims.append(key)
                room += self._entries[key].image.num_embeds
        if room < image.num_embeds:
            return False
        for key in victims:
            self._evict(key)
        self._entries[image.key] = _Entry(image, _Batch([image]))
        return True

    def join(self, key: str, mate: ImageInput) -> None:
        """Have `mate` encoded together with image `key`; both are here and have no slice scheduled."""
        entry, other = self._entries[key], self._entries[mate.key]
        assert not entry.batch.num_scheduled, "a batch is made before its first slice"
        assert not other.batch.num_scheduled, "an image joins before its first slice"
        entry.batch.images.append(mate)
        other.batch = entry.batch

    def advance(self, key: str, max_slices: int) -> EncodeSlice:
        """Schedule up to `max_slices` more slices of an image that has some left, and of those encoded with it."""
        entry = self._entries[key]
        batch = entry.batch
        first = batch.num_scheduled
        batch.num_scheduled = min(entry.image.num_slices, first + max_slices)
        for image in batch.images:
            self._entries.move_to_end(image.key)
        return EncodeSlice(entry.image, first, batch.num_scheduled - first, self.mates_of(key))

    def complete(self, key: str) -> None:
        """Note that the last slice of image `key` was computed, unless it has been dropped and begun again since."""
        if self.is_encoded(key):
            self._entries[key].is_resident = True

    def drop(self, key: str) -> None:
        """Forget an image that failed; its runner holds nothing of it any more, so that no eviction is due."""
        if key in self._entries:
            self._remove(key)

    def take_evictions(self) -> tuple[str, ...]:
        """Keys evicted since the last call: the next step must name them."""
        evictions, self._evictions = tuple(self._evictions), []
        return evictions

    def check(self) -> None:
        """Raise AssertionError unless the books add up."""
        assert self.num_embeds <= self.capacity, f"{self.num_embeds} embeddings in a cache of {self.capacity}"
        for key, entry in self._entries.items():
            assert 0 <= entry.batch.num_scheduled <= entry.image.num_slices, f"image {key}: slices out of range"
            here = [self._entries.get(image.key) for image in entry.batch.images]
            assert all(e is not None and e.batch is entry.batch for e in here), f"image {key}: its batch is not here"
            assert entry in here, f"image {key}: not in its own batch"
            assert not entry.is_resident or self.is_encoded(key), f"image {key}: resident but not encoded"

    def _victims(self, key: str, may_take_pinned: bool) -> list[str]:
        victims = [k for k in self._entries if not self.is_pinned(k)]
        if may_take_pinned:
            rank = self._rank_by_key[key]
            later = [k for k in self._entries if self._rank_by_key.get(k, -1) > rank]
            victims += sorted(later, key=self._rank_by_key.__getitem__, reverse=True)
        return victims

    def _evict(self, key: str) -> None:
        self._remove(key)
        self._evictions.append(key)

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key)
        entry.batch.images.remove(entry.image)

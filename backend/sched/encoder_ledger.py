"""Which image embeddings exist, how far the unfinished ones are, and which may go: a ledger without tensors.

An image is here from its first encoder slice on, at its full size, counted in embeddings. It is *resident* once its
last slice has been computed, *pinned* while a running sequence still needs it, and *evictable* otherwise. The ledger
does not know sequences: the scheduler names the pinned keys, the most important first, before each step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from backend.types import EncodeSlice, ImageInput


@dataclass(slots=True)
class _Entry:
    image: ImageInput
    num_scheduled: int = 0
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
        return entry is not None and entry.num_scheduled == entry.image.num_slices

    def rest_of(self, image: ImageInput) -> EncodeSlice:
        """The slices of `image` that are not scheduled yet."""
        entry = self._entries.get(image.key)
        first = 0 if entry is None else entry.num_scheduled
        return EncodeSlice(image, first, image.num_slices - first)

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
        self._entries[image.key] = _Entry(image)
        return True

    def advance(self, key: str, max_slices: int) -> EncodeSlice:
        """Schedule up to `max_slices` more slices of an image that has some left."""
        entry = self._entries[key]
        first = entry.num_scheduled
        entry.num_scheduled = min(entry.image.num_slices, first + max_slices)
        self._entries.move_to_end(key)
        return EncodeSlice(entry.image, first, entry.num_scheduled - first)

    def complete(self, key: str) -> None:
        """Note that the last slice of image `key` was computed."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_resident = True

    def drop(self, key: str) -> None:
        """Forget an image that failed; its runner holds nothing of it any more, so that no eviction is due."""
        self._entries.pop(key, None)

    def take_evictions(self) -> tuple[str, ...]:
        """Keys evicted since the last call: the next step must name them."""
        evictions, self._evictions = tuple(self._evictions), []
        return evictions

    def check(self) -> None:
        """Raise AssertionError unless the books add up."""
        assert self.num_embeds <= self.capacity, f"{self.num_embeds} embeddings in a cache of {self.capacity}"
        for key, entry in self._entries.items():
            assert 0 <= entry.num_scheduled <= entry.image.num_slices, f"image {key}: slices out of range"
            assert not entry.is_resident or self.is_encoded(key), f"image {key}: resident but not encoded"

    def _victims(self, key: str, may_take_pinned: bool) -> list[str]:
        victims = [k for k in self._entries if not self.is_pinned(k)]
        if may_take_pinned:
            rank = self._rank_by_key[key]
            later = [k for k in self._entries if self._rank_by_key.get(k, -1) > rank]
            victims += sorted(later, key=self._rank_by_key.__getitem__, reverse=True)
        return victims

    def _evict(self, key: str) -> None:
        del self._entries[key]
        self._evictions.append(key)

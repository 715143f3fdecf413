"""The stations of a pipeline in their order, by name, by camera and by open event. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from pipeline.camera import Camera
from pipeline.station import Station


class Stations:
    """Which cameras there are now, and whose each open event is, also of a camera that is gone."""

    def __init__(self) -> None:
        self._by_name: dict[str, Station] = {}
        self._by_event: dict[str, Station] = {}
        self._closed = asyncio.Event()

    def __iter__(self) -> Iterator[Station]:
        return iter(tuple(self._by_name.values()))

    def __contains__(self, camera_id: str) -> bool:
        return camera_id in self._by_name

    def __getitem__(self, camera_id: str) -> Station:
        return self._by_name[camera_id]

    @property
    def names(self) -> list[str]:
        """In order."""
        return list(self._by_name)

    @property
    def cameras(self) -> tuple[Camera, ...]:
        """In order."""
        return tuple(station.camera for station in self)

    @property
    def are_over(self) -> bool:
        """Whether there are some, and every source has ended and nothing is under way."""
        return bool(self._by_name) and all(station.camera.is_over for station in self)

    def put(self, station: Station) -> None:
        """One more, at the end."""
        self._by_name[station.camera.camera_id] = station

    def take(self, camera_id: str) -> Station:
        """One less. Raises `KeyError`."""
        return self._by_name.pop(camera_id)

    def sort(self, names: Sequence[str]) -> None:
        """Bring them into the order of `names`, which has them all."""
        self._by_name = {name: self._by_name[name] for name in names if name in self._by_name}

    def find(self, camera: Camera) -> Station | None:
        """The station of this very camera, unless it is gone."""
        station = self._by_name.get(camera.camera_id)
        return station if station is not None and station.camera is camera else None

    def open_event(self, event_id: str, station: Station) -> None:
        """`event_id` is this station's, and open."""
        self._by_event[event_id] = station

    def close_event(self, event_id: str) -> Station:
        """`event_id` is over and kept; whose it was."""
        station = self._by_event.pop(event_id)
        self._closed.set()
        return station

    async def all_closed(self, station: Station) -> None:
        """Wait until no event of `station` is open."""
        while station in self._by_event.values():
            self._closed.clear()
            await self._closed.wait()

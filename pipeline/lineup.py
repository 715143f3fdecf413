"""Which cameras are watched: they come, change and go while the others run, one change at a time.

Lives on the event loop. What a station is made of, and what else there is to do when the cameras became others, is said
by whoever makes a lineup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from camera_sources.base import Source, SourceError
from pipeline.config import CameraConfig
from pipeline.feed import CameraRemoved, Feed
from pipeline.patient import PatientSource
from pipeline.station import Station
from pipeline.stations import Stations


class Lineup:
    """Changes `stations`. `open` gives a camera's source, `make` its station.

    `on_changed` is called when other cameras are watched than before, `on_begun` with the task of a station that was
    begun, `on_gone` with the name of a camera that is gone, all its events kept.
    """

    def __init__(
        self,
        stations: Stations,
        feed: Feed,
        *,
        open: Callable[[CameraConfig], Source],
        make: Callable[[CameraConfig, Source], Station],
        on_changed: Callable[[], None],
        on_begun: Callable[[asyncio.Task[None]], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._stations = stations
        self._feed = feed
        self._open = open
        self._make = make
        self._on_changed = on_changed
        self._on_begun = on_begun
        self._on_gone = on_gone
        self._changing = asyncio.Lock()
        self._closed = False

    async def open_first(self, config: CameraConfig, *, patient: bool) -> None:
        """Open one of the cameras to begin with; it begins with `begin`.

        Raises `SourceError` if it cannot start; if `patient`, it is down then and tried again.
        """
        try:
            station = self._make(config, self._open(config))
            self._stations.put(station)
            await station.open()
        except SourceError as error:
            if not patient:
                raise
            source = PatientSource(lambda: self._open(config), config.camera_id, str(error))
            self._stations.put(self._make(config, source))

    def begin(self) -> None:
        """Begin with those that were opened."""
        self._on_changed()
        for station in self._stations:
            self._on_begun(station.begin())

    def close(self) -> None:
        """Nobody comes any more."""
        self._closed = True

    async def add(self, config: CameraConfig) -> None:
        """One more camera. Raises `SourceError`, or `ValueError` for a taken name; nothing changes then."""
        async with self._changing:
            self._require_free(config)
            await self._add(config)

    async def remove(self, camera_id: str) -> None:
        """One camera less: what is under way of it ends as CANCELLED and is kept. Raises `KeyError`."""
        async with self._changing:
            await self._remove(self._stations[camera_id])
            self._feed.publish(CameraRemoved(camera_id))

    async def replace(self, camera_id: str, config: CameraConfig) -> None:
        """Other settings for a camera, under another name if they have one.

        Where one source serves both (`CameraConfig.reads_like`) it goes on, and so do its tracks; else they begin anew.
        Raises `KeyError`, `ValueError` for a name that is taken, or `SourceError`: then the camera goes on as it was.
        """
        async with self._changing:
            old, order = self._stations[camera_id], self._stations.names
            if config.camera_id != camera_id:
                self._require_free(config)
            if config.reads_like(old.config):
                old.change(config)
                return
            self._open(config)  # what can be seen without starting it, before the old one ends
            await self._remove(old)
            now = config
            try:
                await self._add(config)
            except BaseException:
                now = old.config
                await self._add(now)
                raise
            finally:
                order[order.index(camera_id)] = now.camera_id
                self._stations.sort(order)
                if camera_id not in self._stations:
                    self._feed.publish(CameraRemoved(camera_id))

    def _require_free(self, config: CameraConfig) -> None:
        if config.camera_id in self._stations:
            raise ValueError(f"a camera is named {config.camera_id} already")

    async def _add(self, config: CameraConfig) -> None:
        station = self._make(config, self._open(config))
        try:
            await station.open()
        except BaseException:
            await station.close()
            raise
        if self._closed:
            await station.close()
            return
        self._stations.put(station)
        self._on_changed()
        self._on_begun(station.begin())

    async def _remove(self, station: Station) -> None:
        self._stations.take(station.camera.camera_id)
        self._on_changed()
        await station.close()
        await self._stations.all_closed(station)
        self._on_gone(station.camera.camera_id)

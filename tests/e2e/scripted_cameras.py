"""What takes the pipeline's place behind the camera API of a page that is served alone."""

from __future__ import annotations

from camera_sources.base import SourceError, SourceState, SourceStatus
from pipeline.config import CameraConfig, Zone
from pipeline.feed import CameraChanged, CameraRemoved
from ui.web.board import Board


class ScriptedCameras:
    """Puts cameras on the board as they are added; a source must be an RTSP URL.

    `statuses` is what each camera is at, and who is not in it is not watched; `zones` are what was last given.
    """

    def __init__(self, board: Board, statuses: dict[str, SourceStatus]) -> None:
        self._board = board
        self.statuses = statuses
        self.zones: dict[str, tuple[Zone, ...]] = {}

    async def add(self, config: CameraConfig) -> None:
        await self.replace(config.camera_id, config)

    async def replace(self, camera_id: str, config: CameraConfig) -> None:
        if not config.source.startswith("rtsp://"):
            raise SourceError("no such file")
        status = self.statuses.get(camera_id, SourceStatus(SourceState.CONNECTING))
        if camera_id != config.camera_id:
            await self.remove(camera_id)
        self.statuses[config.camera_id], self.zones[config.camera_id] = status, config.zones
        self.tell(config.camera_id)

    async def remove(self, camera_id: str) -> None:
        self.statuses.pop(camera_id, None)
        self._board.take(CameraRemoved(camera_id))

    def tell(self, camera_id: str) -> None:
        """Tell the board how a camera is."""
        status = self.statuses[camera_id]
        fps = 5.0 if status.state is SourceState.LIVE else 0.0
        self._board.take(CameraChanged(camera_id, status, fps, True, self.zones.get(camera_id, ())))

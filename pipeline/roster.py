"""The cameras that are watched, as settings, changed while they run: pipeline and file change together, or not at all.

Knows nothing of HTTP. Without a file a change lasts until the program ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from camera_sources.base import SourceError
from camera_sources.url import MASK, split_credentials
from pipeline.config import CameraConfig
from pipeline.settings import document
from pipeline.settings.fault import Fault, SettingsError, faults_of
from pipeline.settings.models import CameraSettings
from pipeline.settings.secret import SecretError
from pipeline.settings.source_url import host_of, shown

NOT_BY_HTTP = ("password_env", "password_file")
"""They would let whoever may change a camera send this machine's files and environment to a host of their own."""


TOLD_ONLY = ("has_password", "status", "is_saved")
"""What the API tells of a camera beside its settings, and takes back without a word."""


class UnknownCamera(Exception):
    """No camera has that name. One line."""


class NameTaken(Exception):
    """Another camera has that name. One line."""


class NotSaved(Exception):
    """The file cannot be written, so nothing was changed. One line."""


class Running(Protocol):
    """What watches the cameras."""

    async def add(self, config: CameraConfig) -> None: ...  # noqa: D102
    async def replace(self, camera_id: str, config: CameraConfig) -> None: ...  # noqa: D102
    async def remove(self, camera_id: str) -> None: ...  # noqa: D102


class Roster:
    """The cameras in their order. `path` is the file they come from, None without one. Lives on the event loop.

    `add`, `replace` and `remove` raise `SettingsError` (whose places begin at the camera), `UnknownCamera`, `NameTaken`
    or `NotSaved`; nothing has changed then.
    """

    def __init__(self, running: Running, cameras: Sequence[CameraSettings], path: Path | None) -> None:
        self._running = running
        self._cameras = {camera.name: camera for camera in cameras}
        self._path = path
        self._changing = asyncio.Lock()

    @property
    def is_saved(self) -> bool:
        """Whether changes outlive the program."""
        return self._path is not None

    @property
    def cameras(self) -> tuple[CameraSettings, ...]:
        """All cameras."""
        return tuple(self._cameras.values())

    def get(self, name: str) -> CameraSettings:
        """The camera of that name. Raises `UnknownCamera`."""
        if name not in self._cameras:
            raise UnknownCamera(f"no camera is named {name}")
        return self._cameras[name]

    async def add(self, values: Mapping[str, Any]) -> CameraSettings:
        """Watch one more camera, as `values` describe it."""
        async with self._changing:
            camera = parse(values, None)
            self._require_free(camera.name)
            config = _config(camera)
            undo = await self._save(lambda path: document.put_camera(path, camera, None))
            await self._apply(lambda: self._running.add(config), undo)
            self._cameras[camera.name] = camera
            return camera

    async def replace(self, name: str, values: Mapping[str, Any]) -> CameraSettings:
        """Make the camera `name` what `values` describe. Its password stays unless one is given."""
        async with self._changing:
            camera = parse(values, self.get(name))
            if camera.name != name:
                self._require_free(camera.name)
            config = _config(camera)
            undo = await self._save(lambda path: document.put_camera(path, camera, name))
            await self._apply(lambda: self._running.replace(name, config), undo)
            self._cameras = {(c := camera if old == name else kept).name: c for old, kept in self._cameras.items()}
            return camera

    async def remove(self, name: str) -> None:
        """Watch the camera no more."""
        async with self._changing:
            self.get(name)
            await self._save(lambda path: document.drop_camera(path, name))
            await self._running.remove(name)
            del self._cameras[name]

    def _require_free(self, name: str) -> None:
        if name in self._cameras:
            raise NameTaken(f"a camera is named {name} already")

    async def _save(self, edit: Callable[[Path], str]) -> Callable[[], None]:
        """Edit the file; returns what undoes it."""
        path = self._path
        if path is None:
            return lambda: None
        try:
            before = await asyncio.to_thread(edit, path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise NotSaved(f"cannot write {path}: {reason}; nothing was changed") from None
        except SettingsError as error:
            raise NotSaved(f"{error.lines[0]}; mend the file first, nothing was changed") from None
        return lambda: document.restore(path, before)

    async def _apply(self, change: Callable[[], Awaitable[None]], undo: Callable[[], None]) -> None:
        try:
            await change()
        except SourceError as error:
            await asyncio.to_thread(undo)
            raise SettingsError([Fault(("source",), str(error))]) from None
        except BaseException:
            await asyncio.to_thread(undo)
            raise


def parse(values: Mapping[str, Any], old: CameraSettings | None) -> CameraSettings:
    """A camera from what an API client sent, its secrets from `old`. Raises `SettingsError`."""
    try:
        return CameraSettings.model_validate(_with_secrets(dict(values), old))
    except ValidationError as error:
        raise SettingsError(faults_of(error, CameraSettings)) from None


def public(camera: CameraSettings) -> dict[str, Any]:
    """A camera as anybody may read it: every setting but its password, of which only whether there is one."""
    _, user, password = split_credentials(camera.source)
    values = camera.model_dump(mode="json", exclude={"password", *NOT_BY_HTTP})
    has_password = password is not None or any(getattr(camera, name) for name in ("password", *NOT_BY_HTTP))
    return values | {
        "source": shown(camera.source),
        "username": camera.username or user,
        "has_password": has_password,
    }


def _with_secrets(values: dict[str, Any], old: CameraSettings | None) -> dict[str, Any]:
    for name in TOLD_ONLY:
        values.pop(name, None)
    for name in NOT_BY_HTTP:
        if values.pop(name, None) is not None:
            raise SettingsError([Fault((name,), "can be set in the file only; give password here")])
    source = values.get("source")
    if not isinstance(source, str):
        return values
    is_same_host = old is not None and host_of(source) is not None and host_of(source) == host_of(old.source)
    if old is not None and source == shown(old.source):
        source = values["source"] = split_credentials(old.source)[0]
    elif MASK in source:
        raise SettingsError([Fault(("source",), f"holds {MASK}, which stands for a secret; write it out")])
    if old is None or values.get("username") is None or values.get("password") is not None:
        return values
    _, user, password = split_credentials(old.source)
    kept = {name: getattr(old, name) for name in ("password", *NOT_BY_HTTP) if getattr(old, name) is not None}
    kept = kept or ({} if password is None else {"password": password})
    if kept and not (is_same_host and values["username"] == (old.username or user)):
        raise SettingsError([Fault(("password",), "is missing; give it again for another host or user")])
    return {key: value for key, value in values.items() if key != "password"} | kept


def _config(camera: CameraSettings) -> CameraConfig:
    try:
        return camera.to_config()
    except SecretError as error:
        raise SettingsError([Fault(("password",), str(error))]) from None

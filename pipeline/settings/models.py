"""The settings a person writes, as they are written: what there is, what it may be, and what it means to the pipeline.

The same for a camera in `watchword.yaml` and for one sent to the HTTP API. Knows nothing of files and lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from camera_sources.base import SourceError
from camera_sources.rtsp import check_url
from camera_sources.url import split_credentials
from pipeline.base_url import check_base_url
from pipeline.config import CameraConfig, GateConfig, RetentionConfig, Zone
from pipeline.facts import find_fault as find_prompt_fault
from pipeline.settings.secret import check_readable, read_secret
from pipeline.settings.source_url import join_credentials
from pipeline.zones import find_fault as find_polygon_fault

DEFAULTS = GateConfig()


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def _webcam(source: Any) -> Any:
    """A webcam's number may be written as one."""
    return str(source) if isinstance(source, int) and not isinstance(source, bool) else source


Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Name = Annotated[str, Field(min_length=1, max_length=64)]


class ZoneSettings(_Settings):
    """An area of the picture. Persons count by where they stand: the middle of their lower edge."""

    name: Name
    polygon: tuple[tuple[float, float], ...]
    kind: Literal["include", "exclude"] = "include"

    @field_validator("polygon", mode="before")
    @classmethod
    def _has_points(cls, polygon: Any) -> Any:
        """One complaint about a list of numbers, not one for each of them."""
        if isinstance(polygon, list | tuple) and any(not isinstance(point, list | tuple) for point in polygon):
            raise ValueError("must be a list of points [x, y], such as [[0, 0.5], [1, 0.5], [1, 1]]")
        return polygon

    @field_validator("polygon")
    @classmethod
    def _is_area(cls, polygon: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if (fault := find_polygon_fault(polygon)) is not None:
            raise ValueError(fault)
        return polygon


class CameraSettings(_Settings):
    """One camera. A password is given by one of `password`, `password_env` and `password_file`, or in the URL."""

    name: Name
    source: Annotated[str, BeforeValidator(_webcam), Field(min_length=1, max_length=4096)]
    username: Annotated[str, Field(max_length=256)] | None = None
    password: Annotated[str, Field(max_length=1024)] | None = Field(default=None, repr=False)
    password_env: Name | None = None
    password_file: Path | None = None
    transport: Literal["tcp", "udp"] | None = None
    loop: bool = False
    detector_fps: Annotated[float, Field(ge=0.2, le=30)] | None = None
    zones: Annotated[tuple[ZoneSettings, ...], Field(max_length=32)] = ()
    min_size: Share = 0.0
    min_confidence: Annotated[float, Field(ge=0.1, le=0.95)] = DEFAULTS.min_confidence
    interval_s: Annotated[float, Field(ge=1, le=86_400)] = DEFAULTS.interval_s
    cooldown_s: Seconds = DEFAULTS.cooldown_s
    prompt: Annotated[str, Field(max_length=4000)] | None = None
    picture: Literal["crop", "full"] = "crop"
    padding: Annotated[float, Field(ge=0, le=3)] = 0.35
    json_captions: bool = False

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not all(letter.isalnum() or letter in "._-" for letter in name):
            raise ValueError("may hold letters, digits, dots, dashes and underscores only")
        return name

    @field_validator("source")
    @classmethod
    def _is_source(cls, source: str) -> str:
        if "://" in source and not source.startswith("file:"):
            try:
                check_url(source)
            except SourceError as error:
                raise ValueError(str(error)) from None
        return source

    @field_validator("zones")
    @classmethod
    def _names_differ(cls, zones: tuple[ZoneSettings, ...]) -> tuple[ZoneSettings, ...]:
        names = [zone.name for zone in zones]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two zones are named {twice}; give each a name of its own")
        return zones

    @field_validator("prompt")
    @classmethod
    def _has_known_facts(cls, prompt: str | None, info: ValidationInfo) -> str | None:
        if prompt is not None:
            has_zones = any(zone.kind == "include" for zone in info.data.get("zones", ()))
            if (fault := find_prompt_fault(prompt, has_zones=has_zones)) is not None:
                raise ValueError(fault)
        return prompt

    @field_validator("password_env", "password_file")
    @classmethod
    def _is_readable(cls, where: str | Path | None) -> str | Path | None:
        check_readable(where)
        return where

    @model_validator(mode="after")
    def _credentials_fit(self) -> Self:
        ways = [n for n in ("password", "password_env", "password_file") if getattr(self, n) is not None]
        if len(ways) > 1:
            raise ValueError(f"{ways[0]} and {ways[1]} both give a password; keep one")
        if ways and self.username is None:
            raise ValueError(f"{ways[0]} needs a username beside it")
        if self.username is not None:
            if "://" not in self.source or self.source.startswith("file:"):
                raise ValueError("username is for a URL, and the source is none")
            if split_credentials(self.source)[1] is not None:
                raise ValueError("the source's URL has a user in it already; drop that or username")
        return self

    def to_config(self) -> CameraConfig:
        """What the pipeline gets, its secrets read. Raises `SecretError`."""
        return CameraConfig(
            camera_id=self.name,
            source=self.source
            if self.username is None
            else join_credentials(self.source, self.username, self.secret()),
            loop=self.loop,
            transport=self.transport,
            detector_fps=self.detector_fps,
            zones=tuple(Zone(zone.name, zone.polygon, zone.kind == "exclude") for zone in self.zones),
            min_height=self.min_size,
            gate=GateConfig(interval_s=self.interval_s, cooldown_s=self.cooldown_s, min_confidence=self.min_confidence),
            prompt=self.prompt,
            crops=self.picture == "crop",
            padding=self.padding,
            wants_details=self.json_captions,
        )

    def secret(self) -> str | None:
        """The password, wherever it is kept; None without one. Raises `SecretError`."""
        return read_secret(self.password, self.password_env, self.password_file)


class RetentionSettings(_Settings):
    """How long events are kept; null: without end."""

    days: Annotated[float, Field(gt=0, le=36_500)] | None = RetentionConfig().days
    max_gb: Annotated[float, Field(gt=0, le=1_000_000)] | None = RetentionConfig().max_gb


class PageSettings(_Settings):
    """Where the page is."""

    host: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None


class Settings(_Settings):
    """All of `watchword.yaml`. What is None is left to the command line and its defaults."""

    model: Annotated[str, Field(min_length=1)] | None = None
    base_url: str | None = None
    api_key: Annotated[str, Field(min_length=1)] | None = Field(default=None, repr=False)
    api_key_env: Name | None = None
    api_key_file: Path | None = None
    detector: Annotated[str, Field(min_length=1)] | None = None
    data_dir: Path | None = None
    page: PageSettings = PageSettings()
    retention: RetentionSettings = RetentionSettings()
    cameras: tuple[CameraSettings, ...] = ()

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, base_url: str | None) -> str | None:
        return base_url if base_url is None else check_base_url(base_url)

    @field_validator("api_key_env", "api_key_file")
    @classmethod
    def _is_readable(cls, where: str | Path | None) -> str | Path | None:
        check_readable(where)
        return where

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        ways = [n for n in ("api_key", "api_key_env", "api_key_file") if getattr(self, n) is not None]
        if len(ways) > 1:
            raise ValueError(f"{ways[0]} and {ways[1]} both give a key; keep one")
        return self

    def key(self) -> str | None:
        """The backend's API key, wherever it is kept. Raises `SecretError`."""
        return read_secret(self.api_key, self.api_key_env, self.api_key_file)

    @property
    def variables(self) -> frozenset[str]:
        """The environment variables that hold its secrets."""
        named = [self.api_key_env, *(camera.password_env for camera in self.cameras)]
        return frozenset(name for name in named if name is not None)


def find_twin(cameras: tuple[CameraSettings, ...]) -> int | None:
    """The position of the first camera whose name an earlier one has; None if all differ."""
    names = [camera.name for camera in cameras]
    return next((index for index, name in enumerate(names) if name in names[:index]), None)

"""What the supervisor tells the app, as one JSON document on its standard input (sources may hold credentials)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.config import CameraConfig, RetentionConfig


@dataclass(frozen=True, slots=True)
class AppSettings:
    """Cameras (as the command line names them: a source each), where the backend is, and where the page goes.

    `base_url` ends in `/v1`.

    With `config_path` the cameras are those of that file, read by the app itself whenever it starts.
    `is_own_engine`: the backend is the supervisor's child, too, so it is restarted when it dies.
    """

    cameras: tuple[CameraConfig, ...] = field(repr=False)
    detector: str
    base_url: str
    model: str | None
    api_key: str | None = field(repr=False)
    ui_host: str
    ui_port: int
    data_dir: Path
    cache_dir: Path
    is_own_engine: bool = False
    ui_password_hash: str | None = field(default=None, repr=False)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    config_path: Path | None = None

    def to_json(self) -> str:
        """The document."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, document: str) -> AppSettings:
        """Back from the document; raises `ValueError` or `TypeError` for anything else."""
        values = json.loads(document)
        values["cameras"] = tuple(CameraConfig(**{**camera, "zones": ()}) for camera in values["cameras"])
        values["data_dir"], values["cache_dir"] = Path(values["data_dir"]), Path(values["cache_dir"])
        values["retention"] = RetentionConfig(**values["retention"])
        values["config_path"] = None if values["config_path"] is None else Path(values["config_path"])
        return cls(**values)

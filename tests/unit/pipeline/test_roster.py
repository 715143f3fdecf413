"""Cameras that come, change and go: pipeline and file together or not at all, secrets kept and never told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camera_sources.base import SourceError
from pipeline.config import CameraConfig
from pipeline.roster import NameTaken, NotSaved, Roster, UnknownCamera, public
from pipeline.settings import document
from pipeline.settings.fault import SettingsError
from pipeline.settings.models import CameraSettings

FILE = """\
cameras:
  # over the gate
  - name: yard
    source: rtsp://10.0.0.7/live?token=abc123
    username: guard
    password: hunter2
"""


class FakePipeline:
    """Takes cameras unless told to refuse them."""

    def __init__(self) -> None:
        self.configs: dict[str, CameraConfig] = {}
        self.refuses = False

    async def add(self, config: CameraConfig) -> None:
        if self.refuses:
            raise SourceError("x.mp4: no such file")
        self.configs[config.camera_id] = config

    async def replace(self, camera_id: str, config: CameraConfig) -> None:
        if self.refuses:
            raise SourceError("x.mp4: no such file")
        self.configs.pop(camera_id, None)
        self.configs[config.camera_id] = config

    async def remove(self, camera_id: str) -> None:
        self.configs.pop(camera_id, None)


def text_of(path: Path) -> str:
    return path.read_text()


def write(path: Path, text: str | None) -> None:
    path.unlink()
    if text is not None:
        path.write_text(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "watchword.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def roster(path: Path, pipeline: FakePipeline) -> Roster:
    return Roster(pipeline, document.read(path).settings.cameras, path)


async def test_a_camera_is_added_to_pipeline_and_file(roster: Roster, pipeline: FakePipeline, path: Path) -> None:
    await roster.add({"name": "hall", "source": "rtsp://h/1", "username": "u", "password": "pw"})
    assert pipeline.configs["hall"].source == "rtsp://u:pw@h/1"
    assert [camera.name for camera in document.read(path).settings.cameras] == ["yard", "hall"]
    assert "# over the gate" in text_of(path)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"name": "hall", "source": "ftp://h/1"}, id="scheme"),
        pytest.param({"name": "hall", "source": "rtsp://h/1", "zones": [{"name": "z", "polygon": []}]}, id="zone"),
        pytest.param({"name": "hall", "sauce": "rtsp://h/1"}, id="key"),
        pytest.param({"name": "../x", "source": "rtsp://h/1"}, id="name"),
        pytest.param(
            {"name": "hall", "source": "rtsp://h/1", "username": "u", "password_file": "/etc/hostname"}, id="file"
        ),
        pytest.param({"name": "hall", "source": "rtsp://***@h/1"}, id="mask"),
    ],
)
async def test_what_is_refused_changes_nothing(
    roster: Roster, pipeline: FakePipeline, path: Path, values: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError):
        await roster.add(values)
    assert (text_of(path), pipeline.configs, len(roster.cameras)) == (FILE, {}, 1)


async def test_a_source_that_cannot_start_leaves_the_file_as_it_was(
    roster: Roster, pipeline: FakePipeline, path: Path
) -> None:
    pipeline.refuses = True
    with pytest.raises(SettingsError, match=r"source: x\.mp4: no such file"):
        await roster.add({"name": "hall", "source": "x.mp4"})
    with pytest.raises(SettingsError):
        await roster.replace("yard", {"name": "yard", "source": "x.mp4"})
    assert text_of(path) == FILE
    assert [camera.name for camera in roster.cameras] == ["yard"]


async def test_names_are_taken_or_unknown(roster: Roster) -> None:
    with pytest.raises(NameTaken, match="yard"):
        await roster.add({"name": "yard", "source": "x.mp4"})
    with pytest.raises(UnknownCamera, match="hall"):
        await roster.replace("hall", {"name": "hall", "source": "x.mp4"})
    with pytest.raises(UnknownCamera, match="hall"):
        await roster.remove("hall")


async def test_what_is_told_holds_no_secret_and_sent_back_changes_none(
    roster: Roster, pipeline: FakePipeline, path: Path
) -> None:
    told = public(roster.get("yard"))
    assert "hunter2" not in str(told)
    assert "abc123" not in str(told)
    assert told["has_password"] is True
    await roster.replace("yard", told | {"min_size": 0.1})
    assert pipeline.configs["yard"].source == "rtsp://guard:hunter2@10.0.0.7/live?token=abc123"
    assert pipeline.configs["yard"].min_height == 0.1
    assert text_of(path) == FILE + "    min_size: 0.1\n"


async def test_a_password_never_goes_to_another_host_or_user_unasked(roster: Roster, pipeline: FakePipeline) -> None:
    for changed in ({"source": "rtsp://evil.example/live"}, {"source": "rtsp://10.0.0.7/x", "username": "other"}):
        with pytest.raises(SettingsError, match="password: is missing"):
            await roster.replace("yard", {"name": "yard", "username": "guard"} | changed)
    assert pipeline.configs == {}
    await roster.replace("yard", {"name": "yard", "source": "rtsp://10.0.0.7/x", "username": "guard"})
    assert pipeline.configs["yard"].source == "rtsp://guard:hunter2@10.0.0.7/x"


async def test_a_password_in_the_url_is_kept_likewise(pipeline: FakePipeline) -> None:
    roster = Roster(pipeline, [CameraSettings(name="a", source="rtsp://u:p@h/1")], None)
    told = public(roster.get("a"))
    assert (told["source"], told["username"], told["has_password"]) == ("rtsp://h/1", "u", True)
    await roster.replace("a", told)
    assert pipeline.configs["a"].source == "rtsp://u:p@h/1"
    assert not roster.is_saved


async def test_a_file_that_cannot_be_edited_refuses_the_change(
    roster: Roster, pipeline: FakePipeline, path: Path
) -> None:
    write(path, "cameras: [\n")
    with pytest.raises(NotSaved, match=r"watchword\.yaml:2: not valid YAML.*mend the file first"):
        await roster.add({"name": "hall", "source": "rtsp://h/1"})
    write(path, None)
    with pytest.raises(NotSaved, match="no such file"):
        await roster.remove("yard")
    assert pipeline.configs == {}
    assert [camera.name for camera in roster.cameras] == ["yard"]

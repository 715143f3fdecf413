"""What is wrong is said alike wherever it comes in: by `config check`, by a command that starts, over the camera API.

The page's dialog shows the API's words at the field that the API names; a test with a browser sees to that.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from ruamel.yaml import YAML

from pipeline.archive import StoreError
from pipeline.roster import Roster
from pipeline.settings.models import CameraSettings
from pipeline.status import PipelineReading
from pipeline.store import DATABASE, EventStore
from tests.small_disk import small_disk
from tests.unit.pipeline.test_roster import FakePipeline
from ui.cli import execute
from ui.web.camera_routes import build_camera_routes

YARD = {"name": "yard", "source": "rtsp://10.0.0.7/live"}
BOW = {"name": "lawn", "polygon": [[0, 0], [1, 1], [1, 0], [0, 1]]}

BAD = {
    "polygon": ({"name": "hall", "source": "0", "zones": [BOW]}, "zones[0].polygon", "crosses itself between points"),
    "point": (
        {"name": "hall", "source": "0", "zones": [BOW | {"polygon": [[0, 0], [640, 0], [1, 1]]}]},
        "zones[0].polygon",
        "has point 2 at [640, 0], outside the picture: shares of it go from 0 to 1",
    ),
    "twin": (YARD, "name", "named yard"),
    "scheme": ({"name": "hall", "source": "rstp://10.0.0.8/live"}, "source", "rstp"),
    "unknown": ({"name": "hall", "source": "0", "zonez": []}, "zonez", "unknown setting; did you mean zones?"),
}


async def refusal(values: dict[str, Any]) -> tuple[str, str]:
    """What the API says of a camera: the field, and why."""
    site = FastAPI()
    roster = Roster(FakePipeline(), [CameraSettings.model_validate(YARD)], None)
    site.include_router(build_camera_routes(roster, lambda: PipelineReading((), {}, None)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://test") as client:
        refused = await client.post("/api/cameras", json=values)
    assert 400 <= refused.status_code < 500
    (fault,) = refused.json()["error"]["faults"]
    return fault["field"], fault["message"]


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that is refused says."""
    assert execute(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


@pytest.mark.parametrize("case", BAD)
async def test_a_camera_s_fault_is_one_line_that_names_the_field_everywhere(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, field, words = BAD[case]
    file = tmp_path / "watchword.yaml"
    YAML().dump({"cameras": [dict(YARD), dict(values)]}, file)
    checked = one_line(capsys, "config", "check", str(file))
    started = one_line(capsys, "run", "--config", str(file), "--data-dir", str(tmp_path / "data"))
    told_field, told = await refusal(values)
    assert (told_field, words in told) == (field, True), told
    assert f"cameras[1].{field}" in checked
    assert words in checked
    assert checked in started
    assert checked.startswith(f"{file}:")
    assert int(checked.removeprefix(f"{file}:").split(":")[0]) > 3, "the second camera's line"
    assert not (tmp_path / "data").exists()


async def test_a_secret_that_cannot_be_read_is_said_and_never_asked_for_over_http(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "nowhere"
    for where, words in (
        ({"password_file": str(secret)}, f"cannot read {secret}: no such file or directory"),
        ({"password_env": "NOT_SET_ANYWHERE"}, "the environment variable NOT_SET_ANYWHERE is not set"),
    ):
        values = {"name": "hall", "source": "rtsp://10.0.0.8/1", "username": "guard"} | where
        file = tmp_path / "watchword.yaml"
        YAML().dump({"cameras": [values]}, file)
        checked = one_line(capsys, "config", "check", str(file))
        assert checked in one_line(capsys, "run", "--config", str(file))
        assert checked.endswith(words)
        assert await refusal(values) == (next(iter(where)), "can be set in the file only; give password here")


def test_two_cameras_of_one_name_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    said = one_line(capsys, "run", "yard=rtsp://10.0.0.7/1", "yard=rtsp://10.0.0.8/1")
    assert said == "watchword: two cameras are named yard; give each a name of its own"


def test_events_of_a_newer_version_are_refused_by_every_command_that_would_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    EventStore(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    said = one_line(capsys, "export", str(tmp_path / "out"), "--data-dir", str(tmp_path))
    assert said.startswith(f"watchword: data directory {tmp_path} cannot be used: it was written by a newer Watchword")
    assert said.endswith("or choose another with --data-dir")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


WRITER = """
import os, sys
from pathlib import Path
from pipeline.store import EventStore
from tests.unit.pipeline.test_jsonl import OK_EVENT
store = EventStore(Path(sys.argv[1]))
store.add(OK_EVENT, b"picture")
if sys.argv[2] == "killed":
    os._exit(9)
store.close()
"""


@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_a_read_only_disk_is_named_and_its_events_can_be_exported(
    ended: str, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(data_dir, 4) as disk:
        if disk is None:
            pytest.skip("no disk of its own can be mounted here")
        subprocess.run([sys.executable, "-c", WRITER, str(data_dir), ended], check=False, timeout=60)
        disk.protect()
        with pytest.raises(StoreError) as refused:
            EventStore(data_dir)
        assert execute(("export", str(tmp_path / "out"), "--data-dir", str(data_dir))) == 0
    assert str(refused.value) == (
        f"data directory {data_dir} cannot be used: Read-only file system; choose another with --data-dir"
    )
    assert capsys.readouterr().out == f"1 event in {tmp_path / 'out'}\n"
    assert [path.read_bytes() for path in (tmp_path / "out").rglob("*.jpg")] == [b"picture"]

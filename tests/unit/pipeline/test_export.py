"""What is exported is what was stored, in order, with the pictures it names."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline.export
from pipeline.export import ExportError, export
from pipeline.query import EventQuery
from pipeline.store import EventStore
from tests.unit.pipeline.test_jsonl import FAILED_EVENT, OK_EVENT
from ui.cli import execute

HOUR = 3600.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventStore:
    """Seven events an hour apart, at two cameras; one failed, and the picture of one is gone."""
    monkeypatch.setattr(pipeline.export, "PAGE", 3)
    store = EventStore(tmp_path / "data")
    for hour in range(7):
        camera, caption = ("door", "yard")[hour % 2], "A wolf." if hour > 3 else "A man."
        store.add(
            replace(OK_EVENT, event_id=f"e{hour}", camera=camera, caption=caption, t_wall=hour * HOUR), b"%d" % hour
        )
    store.add(replace(FAILED_EVENT, event_id="failed", t_wall=9 * HOUR), b"f")
    next((tmp_path / "data").glob("pictures/*/e2.jpg")).unlink()
    return store


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_folder_has_every_event_oldest_first_and_every_picture(store: EventStore, tmp_path: Path) -> None:
    told: list[int] = []
    assert export(store, EventQuery(), tmp_path / "out", told.append) == 8
    lines = lines_of((tmp_path / "out" / "events.jsonl").read_text())
    assert [line["event_id"] for line in lines] == [*(f"e{hour}" for hour in range(7)), "failed"]
    assert [line["picture"] for line in lines if line["event_id"] in ("e1", "e2")] == ["pictures/e1.jpg", None]
    for line in lines:
        if line["picture"] is not None:
            assert (tmp_path / "out" / str(line["picture"])).read_bytes() == store.jpeg(str(line["event_id"]))
    assert lines[-1]["error"] == FAILED_EVENT.error
    assert told == [3, 6, 8]


def test_a_zip_file_holds_the_same(store: EventStore, tmp_path: Path) -> None:
    export(store, EventQuery(), tmp_path / "out")
    export(store, EventQuery(), tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.testzip() is None
        assert archive.read("events.jsonl") == (tmp_path / "out" / "events.jsonl").read_bytes()
        assert sorted(name for name in archive.namelist() if name.startswith("pictures")) == sorted(
            f"pictures/{path.name}" for path in (tmp_path / "out" / "pictures").iterdir()
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out", "out.zip"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (EventQuery(camera="yard"), ["e1", "e3", "e5"]),
        (EventQuery(words="wolf"), ["e4", "e5", "e6"]),
        (EventQuery(since=2 * HOUR, until=4 * HOUR), ["e2", "e3"]),
        (EventQuery(words="wolf", camera="door", until=6 * HOUR), ["e4"]),
        (EventQuery(words="!"), []),
    ],
)
def test_only_what_matches_is_exported(
    store: EventStore, tmp_path: Path, query: EventQuery, expected: list[str]
) -> None:
    assert export(store, query, tmp_path / "out") == len(expected)
    lines = lines_of((tmp_path / "out" / "events.jsonl").read_text())
    assert [line["event_id"] for line in lines] == expected


def test_a_place_that_cannot_be_written_is_named(store: EventStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"cannot write .*/file/out: not a directory"):
        export(store, EventQuery(), tmp_path / "file" / "out")


def test_the_command_exports_and_refuses_in_one_line(
    store: EventStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = str(tmp_path / "data")
    assert execute(["export", str(tmp_path / "out"), "--data-dir", data_dir, "--words", "wolf"]) == 0
    assert capsys.readouterr().out == f"3 events in {tmp_path / 'out'}\n"
    for arguments, complaint in (
        ([str(tmp_path / "out"), "--data-dir", data_dir], "exists already; name another"),
        ([str(tmp_path / "new"), "--data-dir", str(tmp_path / "none")], "holds no events"),
        (
            [str(tmp_path / "new"), "--data-dir", data_dir, "--since", "yesterday"],
            "--since yesterday: it takes",
        ),
    ):
        assert execute(["export", *arguments]) == 2
        said = capsys.readouterr().err
        assert complaint in said
        assert said.count("\n") == 1

"""The command line's own decisions: sources, ports, flags, messages. Nothing is started here."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.config import EngineConfig
from backend.server.arguments import parse_args
from camera_sources.base import SourceError
from pipeline.config import CameraConfig
from ui.cli import execute, holds_secret
from ui.commands.app_settings import AppSettings
from ui.commands.children import app_child, backend_child
from ui.commands.engine_flags import to_argv, to_env
from ui.commands.machine import free_port, physical_cores, reachable, require_free
from ui.commands.sources import given_sources, short_name, to_cameras
from ui.errors import UsageError

SECRET = "rtsp://admin:hunter2@10.0.0.7:554/stream"


@pytest.fixture
def settings(tmp_path: Path) -> AppSettings:
    return AppSettings(
        cameras=(CameraConfig("door", SECRET), CameraConfig("clip", "a b.mp4", loop=True)),
        detector="yolo.pt",
        base_url="http://127.0.0.1:8000/v1",
        model=None,
        api_key="sesame",
        ui_host="127.0.0.1",
        ui_port=8080,
        data_dir=tmp_path,
        cache_dir=tmp_path,
    )


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "--bogus"], "--bogus"),
        (["run", "nowhere.mp4"], "nowhere.mp4: no such file"),
        (["run", "--ui-port", "0"], "--ui-port"),
        (["run", "--max-num-seqs", "9", "--max-num-batched-tokens", "4"], "--max-num-batched-tokens 4"),
        (["run", "--base-url", "http://127.0.0.1:1/v1", "--dtype", "float32"], "--dtype"),
        (["serve", "--device", "tpu"], "--device"),
        (["serve", "--port", "many"], "--port"),
        (["watch", "--jsonl", "out.jsonl"], "SOURCE"),
        (["watch", "x.mp4"], "--jsonl"),
        (["watch", "nowhere.mp4", "--jsonl", "o"], "nowhere.mp4: no such file"),
        (["chat", " "], "question is empty"),
        (["chat", "hi", "--base-url", "ftp://x"], "--base-url"),
        (["chat", "hi", "--image", "nowhere.jpg"], "nowhere.jpg"),
        (["dance"], "dance"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOURCE", "MODEL", "DETECTOR"):
        monkeypatch.delenv(name, raising=False)
    assert execute(argv) == 2
    assert words in said(capsys)


def test_chat_says_how_to_start_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port("127.0.0.1")
    assert execute(["chat", "hi", "--base-url", f"http://127.0.0.1:{port}/v1"]) == 2
    line = said(capsys)
    assert f"nothing listens on 127.0.0.1:{port}" in line
    assert "watchword serve" in line


def test_no_message_repeats_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "--base-url", SECRET, f"--port={SECRET}"]) == 2
    assert "hunter2" not in said(capsys)


@pytest.mark.parametrize("command", ["run", "serve", "watch", "chat"])
def test_help_names_every_flag(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert execute([command, "--help"]) == 0
    text = capsys.readouterr().out
    flags = {
        "run": ["--base-url", "--detector", "--ui-host", "--ui-port", "--data-dir", "--loop"],
        "watch": ["--jsonl", "--no-realtime", "--base-url", "--detector"],
        "chat": ["--image", "--base-url", "--model", "--max-tokens"],
        "serve": [],
    }[command]
    if command != "chat":
        hidden = {"host", "port"} if command == "watch" else set()
        engine = [field for field in dataclasses.fields(EngineConfig) if field.name not in hidden]
        flags += [f"--{'no-' * field.metadata['off_flag']}{field.name.replace('_', '-')}" for field in engine]
    assert [flag for flag in flags if flag not in text] == []
    assert "[default: demo]" in text or command == "chat"


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from ui.cli import execute; execute(['--help']);"
        "heavy = {'torch', 'ultralytics', 'nicegui', 'cv2', 'openai', 'fastapi', 'sqlalchemy'} & set(sys.modules);"
        "sys.exit(','.join(sorted(heavy)) or None)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 10.0  # generous: the machine may be busy


def test_a_source_on_the_command_line_wins_over_the_environment() -> None:
    assert given_sources(["a", "b"], {"SOURCE": "c"}) == ["a", "b"]
    assert given_sources(None, {"SOURCE": "my clip.mp4"}) == ["my clip.mp4"]  # one source, spaces and all
    assert given_sources(None, {"SOURCE": "  "}) == []
    assert given_sources([], {}) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (SECRET, "10.0.0.7"),
        ("rtsp://u:p%40ss@cam.local/x", "cam.local"),
        ("/data/front door.mp4", "front-door"),
        ("file:///data/a%20b.mp4", "a-b"),
        ("3", "webcam-3"),
    ],
)
def test_cameras_get_short_names_without_credentials(source: str, name: str) -> None:
    assert short_name(source) == name


def test_cameras_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    source = str(tmp_path / "a.mp4")
    assert [camera.camera_id for camera in to_cameras([source, source, source])] == ["a", "a-2", "a-3"]
    with pytest.raises(SourceError):
        to_cameras([str(tmp_path / "b.mp4")])


def test_settings_survive_the_pipe(settings: AppSettings) -> None:
    assert AppSettings.from_json(settings.to_json()) == settings
    json.loads(settings.to_json())


def test_neither_child_carries_a_secret_where_others_can_read_it(
    settings: AppSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE", SECRET)
    app = app_child(settings)
    backend = backend_child({"api_key": "sesame", "max_num_seqs": 4}, "127.0.0.1", 8000)
    for child in (app, backend):
        assert not holds_secret(child.argv)
        assert "hunter2" not in " ".join([*child.argv, *child.env.values(), repr(child)])
        assert "sesame" not in " ".join([*child.argv, repr(child)])
    assert "sesame" not in app.env.values()
    assert backend.env["WATCHWORD_API_KEY"] == "sesame"
    assert (app.env["OMP_NUM_THREADS"], app.niceness) == ("1", 10)
    assert backend.env["OMP_NUM_THREADS"] == str(physical_cores())
    assert backend.env["OMP_WAIT_POLICY"] == "PASSIVE"


def test_engine_flags_say_the_same_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHWORD_API_KEY", raising=False)
    engine = {"model": "-odd name", "max_num_seqs": 4, "enable_prefix_caching": False, "api_key": "sesame"}
    argv, env = to_argv(engine), to_env(engine)
    assert "sesame" not in " ".join(argv)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert parse_args(argv) == EngineConfig(**engine)


def test_a_port_in_use_is_refused_with_the_flag_that_helps() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use.*--ui-port"):
            require_free("127.0.0.1", port, "--ui-port")
    require_free("127.0.0.1", port, "--ui-port")
    with pytest.raises(UsageError, match="cannot be used"):
        require_free("192.0.2.1", port, "--ui-port")


def test_addresses_to_open() -> None:
    assert [reachable(host) for host in ("127.0.0.1", "0.0.0.0", "::", "::1")] == [
        "127.0.0.1",
        "127.0.0.1",
        "[::1]",
        "[::1]",
    ]


def test_physical_cores_are_some_of_the_logical_ones() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("argv", "is_secret"),
    [
        (["run", SECRET], True),
        (["run", "rtsp://10.0.0.7/stream"], False),
        (["serve", "--api-key", "k"], True),
        (["serve", "--api-key=k"], True),
        (["chat", "who has the key?"], False),
    ],
)
def test_only_a_command_line_with_a_secret_is_moved_out_of_sight(argv: list[str], is_secret: bool) -> None:
    assert holds_secret(argv) is is_secret

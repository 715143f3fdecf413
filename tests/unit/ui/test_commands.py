"""The command line's own decisions: sources, ports, flags, messages. Nothing is started here."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from backend.config import EngineConfig
from backend.errors import ConfigError
from backend.server.arguments import parse_args
from camera_sources.base import SourceError
from pipeline.config import CameraConfig
from tests.unit.pipeline.scripted_server import ScriptedServer, Words
from tests.unit.ui.scripted_engine import ScriptedEngine
from ui.cli import execute, holds_secret
from ui.commands.app_settings import AppSettings
from ui.commands.checks import check_backend
from ui.commands.children import app_child, backend_child
from ui.commands.config_file import read_config, with_config
from ui.commands.engine_flags import OF_SERVERS, to_argv, to_env, with_engine_flags
from ui.commands.machine import free_port, physical_cores, reachable, require_free
from ui.commands.page_password import page_password_hash
from ui.commands.sources import check_cameras, given_sources, short_name, to_cameras
from ui.commands.terminal import echo_for
from ui.errors import UsageError

LOCAL = "127.0.0.1"
NEEDED = "a URL, a video file, a folder of images or a webcam's number"
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
        (["watch", "x.mp4", "--config", "w.yaml", "--jsonl", "-"], "named in --config and on the command line"),
        (["run", "--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["config", "check", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["config", "check"], "FILE"),
        (["watch", "x.mp4"], "--jsonl"),
        (["watch", "nowhere.mp4", "--jsonl", "o"], "nowhere.mp4: no such file"),
        (["chat", " "], "question is empty"),
        (["chat", "hi", "--base-url", "ftp://x"], "--base-url"),
        (["chat", "hi", "--image", "nowhere.jpg"], "nowhere.jpg"),
        (["dance"], "no such command 'dance'; see watchword --help"),
        (["rnu"], "no such command 'rnu'; did you mean 'run'; see watchword --help"),
        (["serve", "--port", "many"], "invalid value for '--port': it takes a whole number; see"),
        (["run", "--ui-port", "99999"], "invalid value for '--ui-port': it is at most 65535; see"),
        (["bench", "--runs", "0"], "invalid value for '--runs': it is at least 1; see"),
        (["bench", "--rate", "often"], "invalid value for '--rate': it takes a number; see"),
        (["bench", "all"], "invalid value for 'SCENARIO': 'all' is not one of 'chat',"),
        (["watch"], "see watchword watch --help"),
        (["run", "--bogus"], "see watchword run --help"),
        (["run", "--model", "./nowhere"], "model ./nowhere: no such directory"),
        (["serve", "--model", "/no/where"], "model /no/where: no such directory"),
        (["run", "--detector", "weights/nowhere.pt"], "weights/nowhere.pt: no such file"),
        (["watch", "rtsp://h/x", "--jsonl", "-", "--detector", "nowhere.onnx"], "nowhere.onnx: no such file"),
        (["run", "--base-url", "http://exa mple/v1"], "--base-url: http://exa mple/v1 holds blanks"),
        (["run", "--base-url", "ftp://x"], "--base-url: ftp://x does not begin with http:// or https://"),
        (["run", "yard=rtsp://h/1", "yard=rtsp://h/2"], "two cameras are named yard"),
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
    assert f"no answer from an engine at http://127.0.0.1:{port}/v1 (connection refused)" in line
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
    assert "<bool>" not in text
    flags = {
        "run": ["--base-url", "--detector", "--ui-host", "--ui-port", "--ui-password", "--data-dir", "--loop"],
        "watch": ["--jsonl", "--no-realtime", "--base-url", "--detector"],
        "chat": ["--image", "--base-url", "--model", "--max-tokens"],
        "serve": [],
    }[command]
    if command != "chat":
        hidden = OF_SERVERS if command == "watch" else ()
        engine = [field for field in dataclasses.fields(EngineConfig) if field.name not in hidden]
        flags += [f"--{'no-' * field.metadata['off_flag']}{field.name.replace('_', '-')}" for field in engine]
    assert [flag for flag in flags if flag not in text] == []
    assert "[default: demo]" in text or command == "chat"


def test_paragraphs_of_help_break_where_the_terminal_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert execute(["tune", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("Chats stream while" in line and "also after Ctrl-C." in line for line in lines)


@pytest.mark.parametrize("command", ["run", "watch", "chat", "bench", "selftest", "export", "config check"])
def test_help_speaks_of_no_python_types(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    assert execute([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "Arguments" in text
    assert not re.search(r"<\w+(\[\w+\])?>|default: None|\(default:", text)


def test_help_tells_a_command_s_own_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for command, seconds in (("run", 1), ("serve", 20)):
        assert execute([command, "--help"]) == 0
        told = " ".join(capsys.readouterr().out.partition("--drain-timeout-s")[2].split("--")[0].split())
        assert f"[default: {seconds}]" in told


@pytest.mark.parametrize("given", ["yesterday", "2026-13-01", "2026-06-01 25:00"])
def test_a_time_that_is_none_is_answered_with_one(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["export", str(tmp_path / "out"), "--until", given]) == 2
    assert said(capsys).strip() == (
        f"watchword: --until {given}: it takes a local time like 2026-06-01 or '2026-06-01 14:30'"
    )


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
    assert given_sources(None, {"SOURCE": "yard=rtsp://h/1\n\n my clip.mp4\n"}) == ["yard=rtsp://h/1", "my clip.mp4"]
    assert given_sources(None, {"SOURCE": "  "}) == []
    assert given_sources([], {}) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (SECRET, "10.0.0.7-stream"),
        ("rtsp://u:p%40ss@cam.local/nvr/ch3/", "cam.local-ch3"),
        ("rtsp://cam.local:554", "cam.local"),
        ("rtsp://cam.local/user=admin&password=hunter2&channel=1", "cam.local"),
        ("http://cam.local/mjpeg.cgi?pwd=hunter2", "cam.local-mjpeg.cgi"),
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


def test_a_camera_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.mp4", "b.mp4", "x=a.mp4", "c=x.mp4"):
        (tmp_path / name).touch()
    cameras = to_cameras(["b.mp4", "b=a.mp4", "yard=rtsp://u:pw@h/1?channel=2", "x=a.mp4", "rtsp://h/1?channel=2"])
    assert [(camera.camera_id, camera.source) for camera in cameras] == [
        ("b-2", "b.mp4"),  # the name that was given wins
        ("b", "a.mp4"),
        ("yard", "rtsp://u:pw@h/1?channel=2"),
        ("x-a", "x=a.mp4"),  # a file of that whole name exists
        ("h-1", "rtsp://h/1?channel=2"),
    ]


def test_files_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.mp4").write_text("no video")
    for name, problem in (("empty", "no images in this folder"), ("notes.mp4", "not a video that can be read")):
        with pytest.raises(SourceError, match=problem):
            check_cameras(to_cameras(["rtsp://camera/1", str(tmp_path / name)]))
    check_cameras(to_cameras(["rtsp://camera.invalid/1"]))  # a network is not asked


@pytest.mark.parametrize("command", ["run", "watch"])
def test_an_unreadable_file_and_a_model_that_is_none_are_refused_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.delenv("DETECTOR", raising=False)
    clip = tmp_path / "notes.mp4"
    clip.write_text("no video")
    argv = [
        command,
        str(clip),
        *(["--jsonl", "-"] if command == "watch" else ["--port=0", f"--ui-port={free_port(LOCAL)}"]),
    ]
    started = time.monotonic()
    assert execute(argv) == 2
    assert "not a video that can be read" in said(capsys)
    assert execute([*argv, "--model", str(tmp_path)]) == 2
    assert "there is no config.json in this directory" in said(capsys)
    assert time.monotonic() - started < 20.0  # generous: the machine may be busy


async def test_another_backend_is_asked_before_anything_starts() -> None:
    async with ScriptedEngine(is_ours=False) as server:
        await asyncio.to_thread(check_backend, server.url, model=None, api_key=None)
        root = server.url.removesuffix("/v1")
        with pytest.raises(UsageError, match="usually ends in /v1"):
            await asyncio.to_thread(check_backend, root, model=None, api_key=None)
        await asyncio.to_thread(check_backend, root, model="named", api_key=None)  # some do not list their models
    with pytest.raises(UsageError, match=r"no answer from an engine at .*connection refused"):
        await asyncio.to_thread(check_backend, server.url, model="named", api_key=None)


def test_watch_does_not_start_before_a_dead_backend(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://user:hunter2@{LOCAL}:{free_port(LOCAL)}/v1"
    assert execute(["watch", "rtsp://camera.invalid/1", "--jsonl", "-", "--base-url", url]) == 2
    line = said(capsys)
    assert "no answer from an engine at http://***@" in line
    assert "hunter2" not in line


def test_the_environment_names_settings_of_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []

    @with_engine_flags()
    def command(*, engine: dict[str, object]) -> int:
        seen.append(engine)
        return 0

    cli = typer.Typer()
    cli.command()(command)
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    monkeypatch.setenv("WATCHWORD_API_KEY", "sesame")
    cli(["--max-num-seqs", "4"], standalone_mode=False)
    cli(["--cache-dir", "elsewhere"], standalone_mode=False)
    assert seen[0] == {"cache_dir": tmp_path, "api_key": "sesame", "max_num_seqs": 4}
    assert seen[1]["cache_dir"] == Path("elsewhere")


@pytest.mark.parametrize("is_cut", [False, True])
async def test_an_answer_that_was_cut_says_so(is_cut: bool, capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedServer([Words(("It is ", "Par"), is_cut=is_cut)]) as server:
        argv = ["chat", "Which city?", "--base-url", server.url, "--max-tokens", "4"]
        assert await asyncio.to_thread(execute, argv) == 0
    captured = capsys.readouterr()
    assert captured.out == "It is Par\n"
    assert captured.err == ("… (cut at 4 tokens; --max-tokens raises it)\n" if is_cut else "")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("watchword 0.")


def test_only_the_curious_see_chatter(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "Settings: model=demo",
        "2026-11-29 20:00:00,000 INFO watchword.server: 200 in 0.5 s",
        "2026-11-29 20:00:00,000 ERROR watchword.engine: it broke",
        f"yard is down: cannot open {SECRET}",
    ]
    for verbose in (False, True):
        echo = echo_for([SECRET], None, verbose=verbose)
        for line in lines:
            echo("app", line)
    shown = capsys.readouterr().err.splitlines()
    assert "hunter2" not in "".join(shown)
    assert [line.split()[1] for line in shown] == [
        "2026-11-29",
        "yard",
        "Settings:",
        "2026-11-29",
        "2026-11-29",
        "yard",
    ]


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


def test_the_engine_does_not_get_the_variables_that_hold_cameras_passwords(
    settings: AppSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("YARD_PASSWORD", "hunter2")
    monkeypatch.setenv("ENGINE_KEY", "sesame")
    file = tmp_path / "watchword.yaml"
    file.write_text(
        "api_key_env: ENGINE_KEY\n"
        "cameras: [{name: a, source: rtsp://h/1, username: u, password_env: YARD_PASSWORD}, {name: b, source: rtsp://h/2}]"
    )
    written = read_config(file, None)
    assert written is not None
    assert written.variables == {"YARD_PASSWORD", "ENGINE_KEY"}
    backend = backend_child({}, "127.0.0.1", 8000, written.variables)
    assert not {"YARD_PASSWORD", "ENGINE_KEY"} & backend.env.keys()
    assert app_child(settings).env["YARD_PASSWORD"] == "hunter2", "it reads the file itself"


def test_the_app_gets_the_variables_that_its_file_names(settings: AppSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHWORD_API_KEY", "sesame")
    assert "WATCHWORD_API_KEY" not in app_child(settings).env
    assert app_child(settings, {"WATCHWORD_API_KEY"}).env["WATCHWORD_API_KEY"] == "sesame"


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
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use.*--ui-port"):
            require_free("127.0.0.1", port, "--ui-port")
    require_free("127.0.0.1", port, "--ui-port")
    with pytest.raises(ConfigError, match="cannot be used"):
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
        (["run", f"yard={SECRET}"], True),
        (["run", "rtsp://10.0.0.7/stream"], False),
        (["serve", "--api-key", "k"], True),
        (["serve", "--api-key=k"], True),
        (["chat", "who has the key?"], False),
    ],
)
def test_only_a_command_line_with_a_secret_is_moved_out_of_sight(argv: list[str], is_secret: bool) -> None:
    assert holds_secret(argv) is is_secret


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.9", "cameras.example"])
def test_a_page_for_other_machines_needs_a_password(host: str) -> None:
    with pytest.raises(UsageError, match=f"--ui-host {host} .* set WATCHWORD_UI_PASSWORD"):
        page_password_hash(host, None)
    with pytest.raises(UsageError, match="has 3 characters; it needs 8") as refused:
        page_password_hash(host, "abc")
    assert "abc" not in str(refused.value)
    hashed = page_password_hash(host, "a long password")
    assert hashed is not None
    assert "a long password" not in hashed
    assert page_password_hash("127.0.0.1", None) is None


def test_run_refuses_an_open_page_before_anything_starts() -> None:
    command = [sys.executable, "-m", "ui.cli", "run", "--ui-host=0.0.0.0"]
    environment = {name: value for name, value in os.environ.items() if name != "WATCHWORD_UI_PASSWORD"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "watchword: --ui-host 0.0.0.0 lets other machines open the page, so it needs a password: "
        "set WATCHWORD_UI_PASSWORD or --ui-password"
    ]


def test_a_file_s_faults_are_told_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "watchword.yaml"
    file.write_text("cameras:\n  - name: yard\n    sorce: x.mp4\n")
    assert execute(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{file}:2: cameras[0].source (camera yard): is missing: {NEEDED}",
        f"{file}:3: cameras[0].sorce (camera yard): unknown setting; did you mean source?",
    ]
    assert execute(["run", "--config", str(file)]) == 2
    assert said(capsys).endswith(f"source (camera yard): is missing: {NEEDED}; 1 more: watchword config check {file}")


def test_the_example_is_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["config", "example"]) == 0
    file = tmp_path / "watchword.yaml"
    file.write_text(capsys.readouterr().out)
    assert execute(["config", "check", str(file)]) == 0
    assert "cameras: yard" in capsys.readouterr().out


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sesame")
    file = tmp_path / "watchword.yaml"
    file.write_text("model: m\nbase_url: http://h/v1\napi_key_env: A_KEY\ndetector: d.pt\n")
    written = read_config(file, None)
    engine: dict[str, object] = {}
    assert with_config(written, engine, None, None) == ("http://h/v1", "d.pt")
    assert engine == {"model": "m", "api_key": "sesame"}
    engine = {"model": "flag", "api_key": "flag"}
    assert with_config(written, engine, "http://flag/v1", "flag.pt") == ("http://flag/v1", "flag.pt")
    assert engine == {"model": "flag", "api_key": "flag"}


def test_a_broken_pipeline_is_one_line_and_a_status_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class PipelineError(Exception):
        pass

    def breaks(*_: object, **__: object) -> None:
        raise PipelineError("the detector broke: RuntimeError('out of memory')")

    monkeypatch.setattr("ui.cli.cli", breaks)
    assert execute(["watch"]) == 70
    assert said(capsys) == "watchword: the detector broke: RuntimeError('out of memory')"

"""README's commands, run as they stand there; what is not here (cameras, hubs, a GPU) has a stand-in, by name."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from tests.cameras.fixtures import RtspServer
from tests.e2e.clone import STARTED, Clone, Terminal
from tests.e2e.conftest import SMALL_ENGINE
from tests.e2e.readme import PAGES, ROOT, SHOWN, among, blocks, commands
from tests.unit.ui.scripted_engine import ScriptedEngine
from ui.cli import cli

pytestmark = pytest.mark.timeout(600)

ACTIVATE = ". .venv/bin/activate"
CAMERA_OF = {
    "make run": ["bikes"],
    "SOURCE=yard.mp4 make run": ["yard"],
    "SOURCE='yard=rtsp://camera-1/live\ngate=rtsp://camera-2/live' make run": ["yard", "gate"],
}
"""Those that are called otherwise than after the RTSP server."""


@pytest.fixture
def clone(tmp_path: Path, small_engine: tuple[str, ...]) -> Clone:
    return Clone(tmp_path, small_engine)


def test_every_command_shown_is_accounted_for() -> None:
    assert set(commands()) == set(SHOWN)
    for command, shown in SHOWN.items():
        assert bool(shown.among) != bool(shown.because), command
        assert all(word in command for word in shown.stand_ins if not word.startswith("rtsp")), command
    tests = {"session", "start", "selftest", "another engine", "watch", "serve"}
    assert {shown.among for shown in SHOWN.values()} - {""} == tests
    fences = sum(page.read_text().count("\n```") for page in PAGES)
    assert fences == 2 * len(blocks("sh", "python", "json")), "a block of another language"


@pytest.mark.parametrize("command", [command for command in SHOWN if command.startswith("watchword ")])
def test_the_command_line_takes_what_is_shown(command: str) -> None:
    words = shlex.split(command.partition(" > ")[0])[1:]
    node = typer.main.get_command(cli)
    while inner := getattr(node, "commands", None):
        node = inner[words.pop(0)]
    with node.make_context("watchword", words):
        pass


@pytest.mark.parametrize("command", [command for command in SHOWN if "make " in command])
def test_make_knows_what_is_asked_of_it(command: str, tmp_path: Path) -> None:
    line = command.replace("make ", f"make -n -C '{ROOT}' VENV='{tmp_path}' ")
    done = subprocess.run(["bash", "-c", line], input="rtsp://h/1\n", capture_output=True, text=True, check=True)
    assert f"{tmp_path}/bin/{'watchword run' if 'run' in command else 'python -m pytest'}" in done.stdout


def test_a_session_as_readme_tells_it(clone: Clone) -> None:
    """From the example file to the figures and the export, beside one engine."""
    first, check, run, *rest = among("session")[1:]
    assert run.startswith("watchword run")
    with Terminal(clone, first, before=ACTIVATE) as terminal:
        assert terminal.end() == 0
    written = clone.path / "watchword.yaml"
    written.write_text(written.read_text().replace("rtsp://192.168.1.20/stream1", "yard.mp4").replace("8080", "null"))
    text = "".join(line for line in written.open() if not line.startswith(("data_dir:", "model:", "    transport:")))
    written.write_text(text)
    with Terminal(clone, check, before=ACTIVATE) as terminal:
        assert terminal.end() == 0, terminal.lines
        assert terminal.lines == ["watchword.yaml is good; cameras: yard"]
    with Terminal(clone, run, before=ACTIVATE) as product:
        product.until_said(STARTED)
        assert clone.cameras() == ["yard"]
        for command in rest:
            with Terminal(clone, command, before=ACTIVATE) as terminal:
                assert terminal.end() == 0, terminal.lines
                assert terminal.lines, command
        assert python_block(clone).strip()
    assert product.lines[-1] == "Stopped."
    for name in ("gaps.png", "curve.png"):
        assert (clone.path / name).read_bytes().startswith(b"\x89PNG")
    assert "events.jsonl" in zipfile.ZipFile(clone.path / "june.zip").namelist()


def python_block(clone: Clone) -> str:
    """What README's Python program prints, the engine being on a port of its own."""
    (program,) = blocks("python")
    # a random model that may stop at once would now and then print nothing
    wish = 'stream=True, max_tokens=32, extra_body={"ignore_eos": True}'
    program = program.replace(":8000", f":{clone.port}").replace("stream=True", wish)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("command", among("start"))
def test_a_start_as_readme_shows_it(command: str, clone: Clone, checkpoint: Callable[[str], Path]) -> None:
    models = {name: str(checkpoint(name)) for name in ("smolvlm", "qwen2_5_vl")}
    with RtspServer(user="user", password="password") as guarded, RtspServer() as camera:
        here = {"rtsp": camera.url, **models}
        typed = guarded.url + "\n" if command.startswith("read") else ""
        with Terminal(clone, command, here, typed=typed) as terminal:
            terminal.until_said(STARTED)
            named = CAMERA_OF.get(command, ["127.0.0.1-cam"] if "SOURCE" in command else ["bikes"])
            assert clone.cameras() == named
        assert "Stopped." in terminal.lines
        assert not any("password@" in line for line in terminal.lines)


@pytest.mark.long
@pytest.mark.parametrize("command", among("another engine"))
async def test_another_engine_as_readme_shows_it(command: str, clone: Clone) -> None:
    def run(here: dict[str, str]) -> None:
        with Terminal(clone, command, here, before=ACTIVATE) as terminal:
            terminal.until_said(STARTED)
            assert clone.cameras() == ["127.0.0.1-cam"]

    with RtspServer() as camera:
        async with ScriptedEngine(is_ours=False) as engine:
            await asyncio.to_thread(run, {"rtsp": camera.url, "engine": engine.url})


@pytest.mark.long
@pytest.mark.parametrize("command", among("watch"))
def test_watch_as_readme_shows_it(command: str, clone: Clone) -> None:
    with RtspServer() as camera, Terminal(clone, command, {"rtsp": camera.url}, before=ACTIVATE) as terminal:
        if "rtsp" in command:
            terminal.until_said("is live")
            return
        assert terminal.end() == 0, terminal.lines
    lines = (clone.path / "events.jsonl").read_text().splitlines()
    assert {json.loads(line)["camera"] for line in lines} == {"yard"}


@pytest.mark.long
@pytest.mark.parametrize("command", among("serve"))
def test_serve_as_readme_shows_it(command: str, clone: Clone) -> None:
    with Terminal(clone, command, before=ACTIVATE) as terminal:
        terminal.until_said(f"127.0.0.1:{clone.port}")
        assert python_block(clone).strip()


@pytest.mark.long
@pytest.mark.parametrize("command", among("selftest"))
def test_selftest_as_readme_shows_it(command: str, clone: Clone, checkpoint: Callable[[str], Path]) -> None:
    with Terminal(clone, command, {"llama": str(checkpoint("llama"))}, before=ACTIVATE) as terminal:
        assert terminal.end(400) == 0, terminal.lines


def test_stand_in_flags_are_flags() -> None:
    """What makes a clone's engine small is still a flag of `run`."""
    node = getattr(typer.main.get_command(cli), "commands")["run"]  # noqa: B009 (typer's group has no public type)
    with node.make_context("run", [*SMALL_ENGINE]):
        pass

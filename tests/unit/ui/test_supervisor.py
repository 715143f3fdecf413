"""The supervisor over real, small child processes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.child import Child
from pipeline.supervisor import ChildFailed, Supervisor, answers, restart_delay_s
from tests.unit.ui.scripted_engine import ScriptedEngine

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
STARTS_ANOTHER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"
PARENT = f"{STARTS_ANOTHER}; {SLEEPER}"


class Heard:
    """What the supervisor said, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - the other side is a process
                await asyncio.sleep(0.02)

    def count(self, line: str) -> int:
        return sum(heard == line for _, heard in self.lines)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def python(code: str, name: str = "child", **values: object) -> Child:
    return Child(name, (sys.executable, "-c", code), dict(os.environ), **values)  # pyright: ignore[reportArgumentType]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _proc(pid: int | None, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


async def test_leaving_the_block_ends_children_and_what_they_started(heard: Heard) -> None:
    async with Supervisor([python(PARENT, "a"), python(SLEEPER, "b")], echo=heard) as supervisor:
        await supervisor.ready()
        await heard.until(lambda: heard.count("up") == 3)
        family = descendants(os.getpid())
        assert len(family) >= 3
        started = time.monotonic()
    assert time.monotonic() - started < 3.0, "nobody had to be killed"
    await heard.until(lambda: not any(map(is_alive, family)), timeout_s=2.0)  # a killed grandchild needs its moment


async def test_giving_up_before_anybody_is_ready_leaves_nothing_to_complain_of(heard: Heard) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    never = python(SLEEPER, ready_url="http://127.0.0.1:9/health")

    async def wait() -> None:
        async with Supervisor([never], echo=heard) as supervisor:
            await supervisor.ready()

    waiting = asyncio.create_task(wait())
    await heard.until(lambda: heard.count("up") == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del waiting
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_child_that_ignores_the_request_is_killed_within_five_seconds(heard: Heard) -> None:
    async with Supervisor([python(STUBBORN)], echo=heard) as supervisor:
        await heard.until(lambda: heard.count("up") == 1)
        pid = supervisor.pid("child")
        started = time.monotonic()
    assert time.monotonic() - started < 5.0
    assert pid is not None
    assert not is_alive(pid)


async def test_a_killed_child_is_started_again(heard: Heard) -> None:
    async with Supervisor([python(SLEEPER)], echo=heard) as supervisor:
        await heard.until(lambda: heard.count("up") == 1)
        first = supervisor.pid("child")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await heard.until(lambda: heard.count("up") == 2)
        assert supervisor.pid("child") not in (None, first)
    assert ("child", "ended by SIGKILL; starting again in 0.5 s") in heard.lines


async def test_a_crash_is_noticed_although_a_process_it_started_lives_on(heard: Heard) -> None:
    crash = python(f"{STARTS_ANOTHER}; sys.exit(1)")
    async with Supervisor([crash], echo=heard) as supervisor:
        await supervisor.ready()
        await heard.until(lambda: ("child", "ended with status 1; starting again in 0.5 s") in heard.lines)


async def test_a_wrong_setting_at_the_start_ends_everything(heard: Heard) -> None:
    bad = python("import sys; print('no such model: moon'); sys.exit(2)", "bad", ready_url="http://127.0.0.1:9/health")
    async with Supervisor([python(SLEEPER, "good"), bad], echo=heard) as supervisor:
        with pytest.raises(ChildFailed) as failure:
            await supervisor.ready()
        assert (await supervisor.failed()).exit_code == 2
    assert failure.value.exit_code == 2
    assert ("bad", "no such model: moon") in heard.lines


async def test_the_same_exit_status_later_is_a_crash_like_any_other(heard: Heard) -> None:
    crash = python("print('up', flush=True); import sys, time; time.sleep(0.3); sys.exit(2)")
    async with Supervisor([crash], echo=heard) as supervisor:
        await supervisor.ready()
        await heard.until(lambda: heard.count("up") == 2)


async def test_what_never_becomes_ready_is_given_up(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.supervisor.restart_delay_s", lambda num_failures: 0.01)
    crash = python("import sys; sys.exit(7)", ready_url="http://127.0.0.1:9/health")
    async with Supervisor([crash], echo=heard) as supervisor:
        with pytest.raises(ChildFailed, match="ended with status 7; gave up after 5 starts"):
            await supervisor.ready()


async def test_a_program_that_cannot_be_started_is_an_error_not_a_hang(heard: Heard) -> None:
    missing = Child("missing", ("/nowhere/at/all",), {})
    async with Supervisor([missing], echo=heard) as supervisor:
        with pytest.raises(ChildFailed, match="cannot be started"):
            raise await supervisor.failed()


async def test_secrets_reach_a_child_on_its_standard_input_alone(heard: Heard) -> None:
    child = python("import sys, time; print(len(sys.stdin.read()), flush=True); time.sleep(600)", stdin=b"hunter2")
    assert "hunter2" not in repr(child)
    async with Supervisor([child], echo=heard) as supervisor:
        await heard.until(lambda: heard.count("7") == 1)
        pid = supervisor.pid("child")
        for readable in ("cmdline", "environ"):
            assert "hunter2" not in _proc(pid, readable)


async def test_output_is_relayed_line_by_line_as_a_terminal_would_show_it(heard: Heard) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'10 %\r100 %\nlast\xff line without an end'); sys.stdout.flush()"
    child = python(f"{code}\nimport time; time.sleep(0.2)", restart=False)
    async with Supervisor([child], echo=heard) as supervisor:
        await supervisor.failed()
    assert [line for _, line in heard.lines] == ["100 %", "last\ufffd line without an end"]


async def test_ready_means_that_the_address_answers(heard: Heard) -> None:
    engine = ScriptedEngine()
    async with engine:
        port = engine.port
    child = python(SLEEPER, ready_url=f"http://127.0.0.1:{port}/v1/models")
    async with Supervisor([child], echo=heard) as supervisor:
        waiting = asyncio.create_task(supervisor.ready())
        await asyncio.sleep(0.4)
        assert not waiting.done()
        async with engine:
            await asyncio.wait_for(waiting, 5.0)


async def test_answers_only_to_a_200() -> None:
    async with ScriptedEngine() as engine:
        assert await answers(f"http://127.0.0.1:{engine.port}/v1/models")
        assert not await answers(f"http://127.0.0.1:{engine.port}/nothing")
    assert not await answers(f"http://127.0.0.1:{engine.port}/v1/models")


def test_delays_double_up_to_half_a_minute() -> None:
    assert [restart_delay_s(n) for n in (1, 2, 3, 8, 50)] == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_children_die_with_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "supervise.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, os, sys
        from pipeline.child import Child
        from pipeline.supervisor import Supervisor

        async def main():
            child = Child("child", (sys.executable, "-c", {STUBBORN!r}), dict(os.environ))
            async with Supervisor([child], echo=lambda name, line: print(line, flush=True)) as supervisor:
                await supervisor.failed()

        asyncio.run(main())
        """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "up\n"
        family = descendants(supervisor.pid)
        assert family
        supervisor.kill()
    deadline = time.monotonic() + 5.0
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in family if is_alive(pid)]


def test_the_supervisor_loads_no_heavy_library() -> None:
    heavy = "{'torch', 'ultralytics', 'nicegui', 'cv2'}"
    code = f"import sys, pipeline.supervisor, ui.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_after_the_failure_nothing_more_is_heard(heard: Heard) -> None:
    talker = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('dying', flush=True) or exit(0))"
    bad = python(
        "import time; time.sleep(0.5); print('no such thing', flush=True); raise SystemExit(3)", "bad", restart=False
    )
    other = python(f"{talker}; print('up', flush=True); time.sleep(600)", "other")
    async with Supervisor([bad, other], echo=heard) as supervisor:
        await supervisor.ready()
        assert (await supervisor.failed()).name == "bad"
    assert ("bad", "no such thing") in heard.lines
    assert heard.count("dying") == 0


async def test_a_child_steps_back_as_a_process_and_as_a_session(heard: Heard) -> None:
    """Every child leads a session, and Linux shares the cores out among sessions before it looks at niceness."""
    says = "import os, pathlib; p = pathlib.Path('/proc/self/autogroup'); print('nice', os.nice(0)); "
    says += "print('session', p.read_text().split()[-1] if p.exists() else 10, flush=True)"
    async with Supervisor([python(f"{says}; {SLEEPER}", niceness=10)], echo=heard):
        await heard.until(lambda: heard.count("up") == 1)
    assert (heard.count(f"nice {min(os.nice(0) + 10, 19)}"), heard.count("session 10")) == (1, 1)

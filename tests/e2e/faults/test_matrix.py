"""One product in trouble: every fault of the matrix strikes it in turn, while somebody watches the page.

`pytest -m long tests/e2e/faults` prints the table at the end: what each fault cost (nothing that was announced) and
how long until what happens before the cameras is described again. Every part is real but the model, which is tiny.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from pipeline.retention import EVERY_S
from tests.cameras.fixtures import RtspServer, require_clip
from tests.e2e.faults import clock_shift
from tests.e2e.faults.record import lost
from tests.e2e.faults.table import Row, Table
from tests.e2e.faults.witness import Witness
from tests.e2e.product import Product
from tests.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.long, pytest.mark.rtsp, pytest.mark.clips, pytest.mark.timeout(600)]

CLIP = "examples_flipping_a_pancake.mkv"  # a woman who stays, so that one look a second is enough
DISK_MB = 64
START_S = 300.0
PASSWORD = "hunter2-never-shown"
DAY_S = 86_400
CAMERAS = ("gate", "yard")
NUM_CHATS, MAX_WAITING = 100, 40
ANSWERED, REFUSED = "answered", "refused (429) and asked again"
CONFIG = """\
retention: {{days: 30}}
cameras:
  - {{name: gate, source: {gate}, username: guard, password_env: GATE_PASSWORD, interval_s: 1, cooldown_s: 0}}
  - {{name: yard, source: {yard}, interval_s: 1, cooldown_s: 0}}
"""


@dataclass
class Scene:
    """The product, its two cameras, its disk, its clock, and who watches."""

    product: Product
    witness: Witness
    gate: RtspServer
    yard: RtspServer
    data_dir: Path
    disk: SmallDisk | None
    offset: Path
    table: Table = field(default_factory=Table)

    def until_described(self, since: float, timeout_s: float = 120.0, camera: str | None = None) -> float:
        """Wait until something is described that came up after `since`; when that was."""
        self.product.until(lambda: bool(self.witness.described(since, camera)), timeout_s)
        return self.witness.described(since, camera)[0]

    @contextmanager
    def fault(self, name: str) -> Iterator[Blow]:
        """What is done within is the fault; leaving waits until all is well again and adds the fault's line."""
        self.all_well(time.monotonic())
        blow = Blow(time.monotonic())
        yield blow
        back = self.all_well(blow.t_over)
        self.product.until(lambda: self.witness.trouble == "", 60.0)
        announced, told = self.witness.announced(blow.t_struck), self.witness.told().values()
        num_open = sum(one.t_first < blow.t_over and one.t_final is None for one in told)
        gone = lost(self.data_dir, self.witness.announced())
        self.table.rows.append(
            Row(
                name,
                len(announced),
                len(gone),
                Counter(one.state for one in announced.values())["failed"],
                num_open - self.table.num_cut,
                back - blow.t_over,
                blow.meanwhile,
            )
        )
        print(self.table.rows[-1])
        assert gone == []

    def all_well(self, since: float) -> float:
        """Wait until something that came up after `since` is described for each camera; when that was."""
        return max(self.until_described(since, camera=camera) for camera in CAMERAS)

    def longest_gap_s(self, camera: str, since: float) -> float:
        """Between two pictures of a camera on the page, from `since` to now."""
        now = time.monotonic()
        times = [since, *self.witness.pictures(camera, since, now), now]
        return max(b - a for a, b in pairwise(times))


@dataclass
class Blow:
    """A fault under way: when it struck, when its cause was gone, what else there is to tell of it."""

    t_struck: float
    t_over: float = 0.0
    meanwhile: str = ""

    def __post_init__(self) -> None:
        self.t_over = self.t_over or self.t_struck

    def over(self) -> None:
        """The cause is gone."""
        self.t_over = time.monotonic()


@pytest.fixture(scope="module")
def scene(
    small_engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("home")
    clip = home / "clip.mp4"
    subprocess.run(["ffmpeg", "-loglevel", "error", "-i", require_clip(CLIP), "-c", "copy", "-an", clip], check=True)
    data_dir = home / "data"
    data_dir.mkdir()
    clock = home / "clock"
    shutil.copytree(Path(clock_shift.__path__[0]), clock)
    path = os.pathsep.join(filter(None, (str(clock), os.environ.get("PYTHONPATH"))))
    env = {"PYTHONPATH": path, "GATE_PASSWORD": PASSWORD}
    config = home / "watchword.yaml"
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(data_dir, DISK_MB))
        gate = stack.enter_context(RtspServer(clip, user="guard", password=PASSWORD))
        yard = stack.enter_context(RtspServer(clip))
        config.write_text(CONFIG.format(gate=gate.bare_url, yard=yard.url))
        flags = (*small_engine, f"--max-num-waiting={MAX_WAITING}", f"--config={config}")
        product = stack.enter_context(Product(*flags, home=home, env=env, wait=False))
        product.until(lambda: product.has_said(product.page), START_S)
        witness = stack.enter_context(Witness(product.page))
        scene = Scene(product, witness, gate, yard, data_dir, disk, clock / "offset")
        scene.all_well(float("-inf"))
        yield scene
    request.config.get_terminal_writer().line(f"\n\n{scene.table.text()}\n")


def kill(scene: Scene, words: str) -> None:
    """kill -9 the product's child whose command line has `words`."""
    pid = scene.product.child(words)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_backend_killed(scene: Scene) -> None:
    with scene.fault("backend: kill -9") as blow:
        t_struck = time.monotonic()
        kill(scene, "backend.server")
        scene.until_described(blow.t_struck)
        blow.meanwhile = f"pictures go on (longest gap {scene.longest_gap_s('yard', t_struck):.1f} s)"
        assert scene.longest_gap_s("yard", t_struck) < 5.0
    assert scene.table.rows[-1].num_failed == 0, "what was under way is asked again"


def test_the_engine_has_no_camera_s_password(scene: Scene) -> None:
    engine, app = scene.product.child("backend.server"), scene.product.child("ui.cli app")
    assert engine is not None
    assert app is not None
    assert PASSWORD.encode() not in Path(f"/proc/{engine}/environ").read_bytes()
    assert PASSWORD.encode() in Path(f"/proc/{app}/environ").read_bytes(), "it reads the file that names the variable"


def test_app_killed(scene: Scene) -> None:
    with scene.fault("app: kill -9") as blow:
        kill(scene, "ui.cli app")
        scene.product.until(lambda: scene.product.has_said("app  ended by SIGKILL"), 30.0)
        assert httpx.get(f"{scene.product.api}/health", timeout=10).status_code == 200
        blow.meanwhile = "the engine answers"


def test_capture_processes_killed(scene: Scene) -> None:
    with scene.fault("capture processes: kill -9"):
        pids = [pid for pid, line in scene.product.family().items() if "camera_sources.capture_child" in line]
        assert len(pids) == len(CAMERAS)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_rtsp_server_killed(scene: Scene) -> None:
    with scene.fault("RTSP server: kill -9, back after 15 s") as blow:
        scene.gate.kill()
        scene.product.until(lambda: scene.witness.states.get("gate") == "down", 30.0)
        down_s = time.monotonic() - blow.t_struck
        time.sleep(max(0.0, 15.0 - down_s))
        assert scene.witness.described(blow.t_struck, "yard"), "the other camera goes on"
        scene.gate.restart()
        blow.over()
        gap_s = scene.longest_gap_s("yard", blow.t_struck)
        blow.meanwhile = f"said to be down after {down_s:.1f} s; the other's longest gap {gap_s:.1f} s"
        assert gap_s < 5.0


def test_rtsp_server_frozen(scene: Scene) -> None:
    with scene.fault("RTSP server: frozen for 15 s") as blow:
        scene.gate.freeze()
        scene.product.until(lambda: scene.witness.states.get("gate") == "stale", 30.0)
        stale_s = time.monotonic() - blow.t_struck
        time.sleep(max(0.0, 15.0 - stale_s))
        scene.gate.thaw()
        blow.over()
        blow.meanwhile = f"said to be stale after {stale_s:.1f} s"


def test_full_disk(scene: Scene) -> None:
    if scene.disk is None:
        pytest.skip("no disk of its own can be mounted here")
    with scene.fault("disk full for 20 s") as blow:
        scene.disk.fill()
        scene.product.until(lambda: "No space left" in scene.witness.trouble or "full" in scene.witness.trouble, 30.0)
        said_s = time.monotonic() - blow.t_struck
        time.sleep(max(0.0, 20.0 - said_s))
        num_waiting = len(lost(scene.data_dir, scene.witness.announced()))
        assert num_waiting > 0, "else the disk was not full"
        scene.disk.clear()
        blow.over()
        scene.product.until(lambda: scene.witness.trouble == "", 30.0)
        kept_s = time.monotonic() - blow.t_over
        blow.meanwhile = f"said after {said_s:.1f} s; {num_waiting} events waited, kept {kept_s:.1f} s after"


def test_slow_page(scene: Scene) -> None:
    app = scene.product.child("ui.cli app")
    assert app is not None
    before = psutil.Process(app).memory_info().rss
    with scene.fault("10 pages that read nothing, for 50 s") as blow, ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(deaf_page(scene.product.ui_port))
        time.sleep(50.0)
        blow.over()
        grown = psutil.Process(app).memory_info().rss - before
        num_pictures = len(scene.witness.pictures("yard", blow.t_struck, blow.t_over))
        gap_s = scene.longest_gap_s("yard", blow.t_struck)
        rate = num_pictures / (blow.t_over - blow.t_struck)
        blow.meanwhile = f"the app grew by {grown / 1e6:.0f} MB; another page: {rate:.1f} pictures/s, gap {gap_s:.1f} s"
        assert grown < 60e6
        assert gap_s < 5.0


def test_a_hundred_chats(scene: Scene) -> None:
    with scene.fault(f"{NUM_CHATS} chat clients, 2 questions each") as blow:
        outcomes = asyncio.run(ask_all(scene.product.api))
        blow.over()
        took_s = blow.t_over - blow.t_struck
        described = [blow.t_struck, *scene.witness.described(blow.t_struck), blow.t_over]
        gap_s = max(b - a for a, b in pairwise(described))
        counts = Counter(outcomes)
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        blow.meanwhile = f"within {took_s:.0f} s {told}; {len(described) - 2} captions, longest gap {gap_s:.1f} s"
        assert counts[ANSWERED] == 2 * NUM_CHATS
        assert counts.keys() <= {ANSWERED, REFUSED}
        assert len(described) > 2


def test_clock_stepped(scene: Scene) -> None:
    app = scene.product.child("ui.cli app")
    assert app is not None
    with scene.fault("clock: 40 days on, then 2 days back") as blow:
        scene.offset.write_text(str(40 * DAY_S))
        time.sleep(10.0)
        gaps = [scene.longest_gap_s("yard", blow.t_struck)]
        runs_s = time.time() - psutil.Process(app).create_time()
        time.sleep(EVERY_S - runs_s % EVERY_S + 20.0)  # until old events have been looked for
        scene.offset.write_text(str(-2 * DAY_S))
        blow.over()
        time.sleep(10.0)
        gaps.append(scene.longest_gap_s("yard", blow.t_over))
        blow.meanwhile = f"pictures go on (longest gap {max(gaps):.1f} s)"
        assert max(gaps) < 5.0
    cameras = httpx.get(f"{scene.product.page}/api/cameras").json()["cameras"]
    assert {camera["status"]["state"] for camera in cameras} == {"live"}


@contextmanager
def deaf_page(port: int) -> Iterator[None]:
    """A page that opens its WebSocket and never reads from it."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", port))
        line.sendall(
            f"GET /live/socket HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        yield


async def ask_all(api: str) -> list[str]:
    """What became of every question of every client."""
    async with openai.AsyncOpenAI(base_url=f"{api}/v1", api_key="none", max_retries=0, timeout=120.0) as client:
        (model,) = (await client.models.list()).data
        told = await asyncio.gather(*(ask(client, model.id, number) for number in range(NUM_CHATS)))
    return [outcome for outcomes in told for outcome in outcomes]


async def ask(client: openai.AsyncOpenAI, model: str, number: int) -> list[str]:
    outcomes: list[str] = []
    for question in range(2):
        while True:
            outcome = await ask_once(client, model, f"Question {question} of client {number}: what is that?")
            outcomes.append(outcome)
            if outcome != REFUSED:
                break
            await asyncio.sleep(1.0)
    return outcomes


async def ask_once(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    try:
        async with asyncio.timeout(120):
            stream = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], max_tokens=48, stream=True
            )
            reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
        return ANSWERED if reasons and reasons[-1] in ("stop", "length") else f"cut: {reasons[-1:]}"
    except openai.RateLimitError as error:
        return REFUSED if error.response.headers.get("retry-after") else "429 without Retry-After"
    except TimeoutError:
        return "hung"
    except openai.OpenAIError as error:
        return type(error).__name__

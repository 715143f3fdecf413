"""`watchword run` as a process among processes: how it starts, what others can see of it, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.product import Product, alive, command_line

PASSWORD = "hunter2-never-shown"
CAMERA = f"rtsp://admin:{PASSWORD}@127.0.0.1:9/door"
STOP_S = 5.0


@pytest.fixture(scope="module")
def product(small_engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with Product(*small_engine, home=tmp_path_factory.mktemp("home"), env={"SOURCE": CAMERA}) as product:
        yield product


def test_says_its_threads_and_exactly_one_url(product: Product) -> None:
    assert [line for line in product.lines if "http://" in line] == [
        f"Watchword is at {product.page} (Ctrl-C stops it)"
    ]
    assert product.has_said("OMP_NUM_THREADS=")
    assert product.has_said("detector threads: 1")


def test_a_camera_that_cannot_be_reached_is_a_state_of_the_page(product: Product) -> None:
    def reason() -> str:
        (camera,) = httpx.get(f"{product.page}/api/cameras").json()["cameras"]
        return camera["status"]["reason"]

    product.until(lambda: reason() != "")
    assert PASSWORD not in reason()


def test_a_password_of_the_environment_is_nowhere_to_be_read(product: Product) -> None:
    family = {product.process.pid: command_line(product.process.pid)} | product.family()
    assert len(family) >= 3
    assert not [line for line in family.values() if PASSWORD in line]
    assert not product.has_said(PASSWORD)


def test_a_killed_backend_is_started_again_while_the_page_stays(product: Product) -> None:
    backend, app = product.child("backend.server"), product.child("ui.cli app")
    assert backend is not None
    os.kill(backend, signal.SIGKILL)
    product.until(lambda: product.child("backend.server") not in (None, backend))
    product.until(lambda: _is_up(f"{product.api}/health"), 60.0)
    assert product.child("ui.cli app") == app
    assert _is_up(f"{product.page}/healthz")


def test_ctrl_c_ends_everything_at_once_and_hides_what_was_typed(small_engine: tuple[str, ...], tmp_path: Path) -> None:
    with Product(CAMERA, *small_engine, home=tmp_path) as product:
        family = product.family()
        assert not [line for line in [command_line(product.process.pid), *family.values()] if PASSWORD in line]
        started = time.monotonic()
        product.process.send_signal(signal.SIGINT)
        assert product.process.wait(10) == 0
        assert time.monotonic() - started < STOP_S
        assert alive(list(family)) == []
    assert not product.has_said(PASSWORD)


def test_children_die_with_a_killed_supervisor(small_engine: tuple[str, ...], tmp_path: Path) -> None:
    with Product(*small_engine, home=tmp_path, env={"SOURCE": CAMERA}) as product:
        family = list(product.family())
        assert len(family) >= 2
        product.process.kill()
        product.process.wait(5)
        deadline = time.monotonic() + STOP_S
        while alive(family) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert {pid: command_line(pid) for pid in alive(family)} == {}


def test_a_model_that_is_not_there_is_one_line_and_nothing_stays(tmp_path: Path) -> None:
    with Product(f"--model={tmp_path / 'nowhere'}", home=tmp_path, env={"SOURCE": CAMERA}, wait=False) as product:
        assert product.process.wait(90) == 2
    assert len([line for line in product.lines if "no such directory" in line]) == 1
    assert not product.has_said("Traceback")
    assert not product.has_said("http://")


@pytest.mark.parametrize("which", ["ui_port", "port"])
def test_a_busy_port_is_an_error_before_anything_starts(which: str, tmp_path: Path) -> None:
    product = Product(home=tmp_path, env={"SOURCE": CAMERA}, wait=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", getattr(product, which)))
        taken.listen(1)
        with product:
            assert product.process.wait(30) == 2
    (line,) = product.lines
    flag = {"ui_port": "--ui-port", "port": "--port"}[which]
    assert f"port {getattr(product, which)} on 127.0.0.1 is in use" in line
    assert line.endswith(f"choose another with {flag}")
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_written_is_one_line(small_engine: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")
    with Product(*small_engine, home=tmp_path, env={"SOURCE": CAMERA}, wait=False) as product:
        assert product.process.wait(90) == 2
    (line,) = [line for line in product.lines if str(tmp_path / "data") in line]
    assert "--data-dir" in line


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False

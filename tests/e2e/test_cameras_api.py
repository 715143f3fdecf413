"""Cameras over HTTP, against the whole product: while others run, in the file, and after the app was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cameras.fixtures import free_port
from tests.e2e.product import Product

PASSWORD = "hunter2-never-shown"
FILE = """\
api_key_env: WATCHWORD_API_KEY
# what we watch
cameras:
  - name: yard   # nobody answers there
    source: rtsp://127.0.0.1:9/yard
    username: guard
    password_env: YARD_PASSWORD
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "watchword.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def product(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    backend = f"--base-url=http://127.0.0.1:{free_port()}/v1"
    env = {"YARD_PASSWORD": PASSWORD, "WATCHWORD_API_KEY": "sesame-never-shown"}
    with Product(f"--config={file}", backend, home=tmp_path_factory.mktemp("home"), env=env) as product:
        yield product


def cameras(product: Product) -> dict[str, dict[str, Any]]:
    told = httpx.get(f"{product.page}/api/cameras")
    assert PASSWORD not in told.text
    return {camera["name"]: camera for camera in told.json()["cameras"]}


def test_a_camera_is_added_changed_and_survives_a_killed_app(product: Product, file: Path) -> None:
    yard = cameras(product)["yard"]
    assert (yard["username"], yard["has_password"], yard["is_saved"]) == ("guard", True, True)
    hall = {"name": "hall", "source": "rtsp://127.0.0.1:9/hall", "username": "u", "password": PASSWORD}
    assert httpx.post(f"{product.page}/api/cameras", json=hall, timeout=20).status_code == 201
    product.until(lambda: cameras(product)["hall"]["status"]["state"] == "down")
    changed = httpx.put(f"{product.page}/api/cameras/yard", json=yard | {"min_size": 0.1}, timeout=20)
    assert changed.json()["min_size"] == 0.1
    assert file.read_text().startswith(FILE + "    min_size: 0.1\n")
    app = product.child("ui.cli app")
    assert app is not None
    os.kill(app, signal.SIGKILL)
    product.until(lambda: is_up(product) and product.child("ui.cli app") not in (None, app), 60.0)
    assert list(cameras(product)) == ["yard", "hall"], "in the file"
    assert httpx.delete(f"{product.page}/api/cameras/hall", timeout=20).status_code == 204
    assert list(cameras(product)) == ["yard"]
    assert not product.has_said(PASSWORD)
    assert not product.has_said("sesame-never-shown")


def test_a_page_of_another_site_changes_nothing(product: Product, file: Path) -> None:
    before = file.read_text()
    for headers in ({"Origin": "https://evil.example"}, {"Content-Type": "text/plain"}):
        refused = httpx.post(
            f"{product.page}/api/cameras", content=b'{"name": "x", "source": "rtsp://h/1"}', headers=headers
        )
        assert 400 <= refused.status_code < 500
    assert file.read_text() == before


def is_up(product: Product) -> bool:
    try:
        return httpx.get(f"{product.page}/healthz").status_code == 200
    except httpx.HTTPError:
        return False

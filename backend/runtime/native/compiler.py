"""Readies numba for this machine, and says what stands in the way of the compiled loops where something does.

Numba is imported here and only when asked for: without it, everything else works. Compiled code is kept on disk, under
a name made of the sources themselves, because numba notices changes in one file but not in those it calls into.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from backend.errors import ConfigError
from backend.hardware import IDLE_THREADS
from backend.runtime.native.weights import find_obstacle

if TYPE_CHECKING:
    from backend.models.adapter import TextParts
    from backend.runtime.kv_pool import KvPool
    from backend.runtime.native.packing import Numbers
    from backend.runtime.text_backend import TextBackend

CACHE_DIR = "NUMBA_CACHE_DIR"
FEATURES = "NUMBA_CPU_FEATURES"
INT8_FEATURE = "avx512vnni"
"""What int8 products need, whatever the weights are packed in."""
KERNELS = (
    "dots",
    "elementwise",
    "layers",
    "likeliest",
    "paged",
    "products",
    "shares",
    "softmax",
    "tiles",
    "tiles_int4",
    "vectors",
    "vision",
)
"""The modules that are compiled."""


def find_native_obstacle(parts: TextParts, *, int8: bool) -> str | None:
    """Why this machine or this model cannot use the compiled loops, in a few words; None when they can."""
    return find_kernel_obstacle(int8=int8) or find_obstacle(parts)


def find_kernel_obstacle(*, int8: bool) -> str | None:
    """Why this machine cannot use the compiled loops, in a few words; None when it can."""
    features = _features()
    if features is None:
        return "numba is not installed"
    if int8 and f"+{INT8_FEATURE}" not in features.split(","):
        return f"the processor has no {INT8_FEATURE}"
    return None


def make_native(parts: TextParts, pool: KvPool, numbers: Numbers) -> TextBackend:
    """The compiled text backend. Raises ConfigError naming the obstacle where there is one."""
    obstacle = find_native_obstacle(parts, int8=numbers != "float32")
    if obstacle is not None:
        raise ConfigError(f"the compiled text model cannot be used: {obstacle}")
    ready_numba()
    from backend.runtime.native.decoder import NativeText

    return NativeText(parts, pool, numbers)


@cache
def _features() -> str | None:
    """The processor's features as LLVM writes them; None without numba."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    return llvm.get_host_cpu_features().flatten()


def kernel_cache(root: Path) -> Path:
    """Where compiled code of exactly these sources is kept under `root`."""
    digest = blake2b(digest_size=8)
    for name in KERNELS:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return root / "kernels" / digest.hexdigest()


def ready_numba() -> None:
    """Settle numba's settings, unless the environment did, before any of `KERNELS` is imported: later is too late."""
    features = _features()
    assert features is not None, "asked before"
    is_in_time = FEATURES in os.environ or f"{__package__}.vectors" not in sys.modules
    assert is_in_time, "compiled loops were imported before this"
    if "+avx512f" in features.split(","):
        # LLVM would otherwise use half of each vector, for the sake of older processors' clocks.
        features += ",-prefer-256-bit"
    root = Path(os.environ.get("WATCHWORD_CACHE", "~/.cache/watchword")).expanduser()
    os.environ.setdefault(FEATURES, features)
    # Numba's OpenMP is loaded with the first parallel loop, after this.
    for name, value in IDLE_THREADS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault(CACHE_DIR, str(kernel_cache(root)))
    if "numba" in sys.modules:
        from numba.core import config

        config.reload_config()

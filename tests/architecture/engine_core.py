"""Imports every module of the engine's core but the compiled loops, which are numba's. For `python -m tests.bare`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import backend

ROOT = Path(backend.__path__[0])


def main() -> None:
    """Print how many modules there are; the first that cannot be imported ends it."""
    paths = [path for folder in ("sched", "runtime", "models") for path in sorted((ROOT / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in paths]
    names = [name for name in names if not name.startswith("backend.runtime.native.")]
    for name in names:
        import_module(name)
    print(f"{len(names)} modules")


if __name__ == "__main__":
    main()

"""Python with few libraries: `python -m tests.bare MODULE [ARGUMENT…]` runs a module as `python -m` would.

Of what is installed it finds torch, transformers, safetensors and greenlet, with whatever those require, and nothing
else: what a machine with a GPU may be expected to have.
"""

from __future__ import annotations

import importlib.machinery
import re
import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType

GIVEN = ("torch", "transformers", "safetensors", "greenlet")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def found_distributions() -> set[str]:
    """The distributions given, and those they require without an extra."""
    found: set[str] = set()
    pending = [_normal(name) for name in GIVEN]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # for another platform
            continue
        for line in needed:
            match = _NAME.match(line)
            if match and "extra ==" not in line:
                pending.append(_normal(match.group()))
    return found


def hidden_modules() -> set[str]:
    """Top-level modules that come with none of the distributions found."""
    found = found_distributions()
    own = {"backend", "tests"}
    return {
        module
        for module, names in packages_distributions().items()
        if module not in own and not any(_normal(name) in found for name in names)
    }


class _FewModules:
    """Finds what Python's own finder finds, without the hidden modules."""

    find_distributions = staticmethod(importlib.machinery.PathFinder.find_distributions)

    def __init__(self, hidden: set[str]) -> None:
        self._hidden = hidden

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in self._hidden:
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, path, target)


def main() -> None:
    """Hide, then run."""
    few = _FewModules(hidden_modules())
    sys.meta_path[:] = [few if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""Who may import whom: the contracts of pyproject.toml, and what contracts cannot say."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, imported_at_load, imported_modules

PACKAGES = ("backend", "camera_sources", "pipeline", "ui")
SCHED_MAY_IMPORT = ("backend.sched", "backend.types", "backend.errors")


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"{folder} has no modules"
    return found


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_contracts_hold() -> None:
    # In a process of its own: import-linter turns off the loggers of the one it runs in.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    linted = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout
    assert "0 broken" in linted.stdout


def test_scheduler_and_what_it_imports_are_standard_library_only() -> None:
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*modules("backend/sched"), *modules("backend/types"), ROOT / "backend/errors.py"]
        for name in imported_modules(tree_of(path))
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == allowed or name.startswith(f"{allowed}.") for allowed in SCHED_MAY_IMPORT)
    }
    assert not foreign


def test_scheduler_has_no_clock() -> None:
    clocks = {"time", "datetime", "random"}
    read = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules("backend/sched")
        for name in imported_modules(tree_of(path))
        if name.split(".")[0] in clocks
    }
    assert not read, "a schedule must follow from its trace alone"


@pytest.mark.parametrize("folder", ["backend/sched", "backend/runtime", "backend/models"])
def test_engine_core_loads_without_web_libraries(folder: str) -> None:
    loaded = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(folder)
        for name in imported_at_load(tree_of(path))
        if name.split(".")[0] in {"pydantic", "fastapi", "greenlet"}
    }
    assert not loaded


@pytest.mark.parametrize(
    ("module", "said"), [("tests.architecture.engine_core", "modules"), ("numba", "No module named numba")]
)
def test_engine_core_loads_where_only_torch_and_transformers_are(module: str, said: str) -> None:
    """In a process that finds no other library; that it does not is tried on one that is installed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bare", module], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == (said == "modules"), done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_package_init_files_import_nothing(package: str) -> None:
    busy = [
        str(path.relative_to(ROOT))
        for path in modules(package)
        if path.name == "__init__.py" and list(imported_at_load(tree_of(path)))
    ]
    assert not busy, "importing one module must not load its neighbours"


@pytest.mark.parametrize("module", ["pipeline.supervisor", "backend.demo.assemble", "ui.cli"])
def test_supervising_process_holds_no_heavy_library(module: str) -> None:
    """What it imports in a real process, through every library in between."""
    heavy = ("torch", "transformers", "ultralytics", "cv2")
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({heavy!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

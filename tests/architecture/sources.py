"""The repository as the architecture tests read it: tracked files, and the imports of a module by where they stand."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

README_PAGES = tuple(
    Path(name) / "README.md" for name in (".", "ui", "pipeline", "backend", "backend/server", "tests/bench")
)
"""README and the pages it leads to, each beside the code it tells of; relative paths."""


def tracked_files() -> list[Path]:
    """Every file git tracks, plus new ones it does not ignore; absolute paths."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Dotted names of everything imported anywhere in a module; relative imports begin with a dot."""
    for node in ast.walk(tree):
        yield from _names(node)


def imported_at_load(tree: ast.Module) -> Iterator[str]:
    """Dotted names of what is imported when the module is: not inside functions, not for type checkers only."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        yield from _names(node)
        pending.extend(ast.iter_child_nodes(node))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "." * node.level + (node.module or "")

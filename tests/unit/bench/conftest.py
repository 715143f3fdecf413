"""Running the commands against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ui.cli import execute


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    status: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def last_line(self) -> str:
        return self.err.splitlines()[-1]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`command("bench", …)` runs it here, as from a shell."""
    monkeypatch.delenv("WATCHWORD_API_KEY", raising=False)
    monkeypatch.setattr("ui.bench.phase.LEAD_S", 0.05)
    monkeypatch.setattr("ui.bench.load.PAUSE_S", 0.01)
    capsys.readouterr()

    def run(*argv: object) -> Done:
        status = execute([str(word) for word in argv])
        captured = capsys.readouterr()
        return Done(status, captured.out, captured.err)

    return run

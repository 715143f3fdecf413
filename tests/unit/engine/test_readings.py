from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend import readings
from backend.readings import RememberedReadings, machine_load


def test_what_was_measured_in_quiet_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "some" / "file.json"
    quiet = RememberedReadings(path, load=0.1)
    assert quiet.recall("a") is None
    quiet.remember("a", {"int8": [1.0, 2.0]})
    for load in (0.0, 3.0):
        later = RememberedReadings(path, load)
        assert later.recall("a") == {"int8": [1.0, 2.0]}
        assert later.caveat("a") == ""


def test_what_was_measured_beside_other_work_is_measured_again_when_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    busy = RememberedReadings(path, load=2.96)
    busy.remember("a", {"int8": [9.0]})
    busy.remember("b", {"int8": [8.0]})
    assert RememberedReadings(path, load=1.0).recall("a") == {"int8": [9.0]}, "no quieter: nothing would be gained"
    caveat = "; measured beside other work (load 3.0 a core), and again at a quieter start"
    assert RememberedReadings(path, load=1.0).caveat("a") == busy.caveat("a") == caveat
    quiet = RememberedReadings(path, load=0.2)
    assert quiet.recall("a") is None
    quiet.remember("a", {"int8": [5.0]})
    assert quiet.recall("a") == {"int8": [5.0]}
    assert (quiet.caveat("a"), quiet.caveat("b"), quiet.caveat("unknown")) == ("", caveat, "")


def test_readings_from_before_loads_were_kept_hold(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps({"a": {"int8": [1.0]}}), encoding="utf-8")
    memory = RememberedReadings(tmp_path / "file.json", load=0.0)
    assert memory.recall("a") == {"int8": [1.0]}
    assert memory.caveat("a") == ""


def test_load_is_of_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings.os, "getloadavg", lambda: (3.0, 1.0, 1.0))
    monkeypatch.setattr(readings.os, "cpu_count", lambda: 2)
    assert machine_load() == 1.5

    def untold() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(readings.os, "getloadavg", untold)
    assert machine_load() == 0.0

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend import readings
from backend.readings import OtherWork, RememberedReadings, machine_load


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


def test_load_is_of_each_core_and_of_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = [(3.0, 1.0, 1.0)]
    monkeypatch.setattr(readings.os, "getloadavg", lambda: loads[0])
    monkeypatch.setattr(readings.os, "cpu_count", lambda: 2)
    machine_load.cache_clear()
    assert machine_load() == 1.5
    loads[0] = (9.0, 1.0, 1.0)
    assert machine_load() == 1.5, "what this process computes itself is no other work"

    def untold() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(readings.os, "getloadavg", untold)
    machine_load.cache_clear()
    assert machine_load() == 0.0
    machine_load.cache_clear()


class Clocks:
    """Processor and wall clocks of a machine with two processors, in seconds, as the module reads them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stat: Path) -> None:
        self.now = self.own = 0.0
        self._stat = stat
        monkeypatch.setattr(readings, "_STAT", stat)
        monkeypatch.setattr(readings.os, "cpu_count", lambda: 2)
        monkeypatch.setattr(readings.os, "sysconf", lambda name: 100)
        monkeypatch.setattr(readings.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(readings.time, "process_time", lambda: self.own)
        self.set(busy_s=0.0)

    def set(self, busy_s: float) -> None:
        """All programs together, this one included: half of it in user mode, the rest in turns."""
        ticks = int(busy_s * 100)
        user, steal = ticks // 2, ticks - ticks // 2
        self._stat.write_text(f"cpu  {user} 0 0 777 55 0 0 {steal} 0 0\ncpu0 1 2 3\n", encoding="ascii")


def test_other_work_is_what_this_process_did_not_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clocks = Clocks(monkeypatch, tmp_path / "stat")
    clocks.now, clocks.own = 100.0, 7.0
    clocks.set(busy_s=50.0)
    others = OtherWork()
    assert others.share() == 0.0
    clocks.now, clocks.own = 110.0, 15.0
    clocks.set(busy_s=50.0 + 8.0 + 6.0)
    assert others.share() == pytest.approx(0.3), "6 s of twice 10"
    clocks.own = 99.0
    assert others.share() == 0.0, "ticks are coarser than this process's own clock"


@pytest.mark.parametrize("told", ["", "cpu  1 2 3", "cpu  a b c d e f g h"])
def test_a_system_that_does_not_tell_has_no_other_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str
) -> None:
    monkeypatch.setattr(readings, "_STAT", tmp_path / "stat")
    assert OtherWork().share() == 0.0
    (tmp_path / "stat").write_text(told, encoding="ascii")
    assert OtherWork().share() == 0.0

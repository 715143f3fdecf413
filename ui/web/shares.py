"""Which part of the product takes how much of the machine: engine, detector, capture and page, read once a second.

A stage is a process (the engine, capture children) or a thread by its name (the detector). What other programs take is
not ours to show. With an NVIDIA driver the GPU's own reading stands beside them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

log = logging.getLogger(__name__)

PERIOD_S = 1.0
ENGINE_MODULE = "backend.server"
STAGES = ("engine", "detector", "capture", "page")
_GPU = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's busy share (0 to 1) and its memory in MiB."""

    busy: float
    used_mib: int
    total_mib: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Cores in use by stage, of `num_cores` that there are; empty before the second reading."""

    cores: Mapping[str, float] = field(default_factory=dict)
    num_cores: int = 1
    gpus: tuple[Gpu, ...] = ()


class ShareMeter:
    """Reads the shares of this process, its children, and the engine beside it."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._before: dict[tuple[str, int], float] = {}
        self._t_before = 0.0
        self._num_cores = len(self._me.cpu_affinity()) if hasattr(self._me, "cpu_affinity") else psutil.cpu_count() or 1
        self.latest = Shares(num_cores=self._num_cores)

    async def follow(self) -> None:
        """Read until cancelled. What cannot be read is not shown, and takes nobody down."""
        told = ""
        while True:
            try:
                gpus = await read_gpus()
                self.latest = await asyncio.to_thread(self.read, time.monotonic(), gpus)
            except (psutil.Error, OSError) as error:
                self.latest = Shares(num_cores=self._num_cores)
                if told != (told := str(error)):
                    log.warning("the machine's load cannot be read: %s", error)
            await asyncio.sleep(PERIOD_S)

    def read(self, now: float, gpus: tuple[Gpu, ...] = ()) -> Shares:
        """The shares between the last reading and this one, at `now` (monotonic seconds)."""
        spent = self._spent()
        elapsed = now - self._t_before
        cores: dict[str, float] = {}
        if self._before and elapsed > 0:
            cores = {stage: 0.0 for stage in STAGES if any(key[0] == stage for key in spent)}
            for key, seconds in spent.items():
                if key in self._before:
                    cores[key[0]] += max(0.0, seconds - self._before[key]) / elapsed
        self._before, self._t_before = spent, now
        return Shares(cores, self._num_cores, gpus)

    def _spent(self) -> dict[tuple[str, int], float]:
        """CPU seconds so far by stage and process or thread."""
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        spent = {
            (stage_of(names.get(thread.id, "")), thread.id): thread.user_time + thread.system_time
            for thread in self._me.threads()
        }
        spent |= _of_processes("capture", self._me.children(recursive=True))
        return spent | _of_processes("engine", self._engines())

    def _engines(self) -> list[psutil.Process]:
        parent = self._me.parent()
        found = []
        for process in parent.children() if parent is not None else []:
            with suppress(psutil.Error):
                if process.pid != self._me.pid and ENGINE_MODULE in process.cmdline():
                    found.append(process)
        return found


def stage_of(thread_name: str) -> str:
    """The stage of one of this process's threads."""
    if thread_name == "perception":
        return "detector"
    return "capture" if thread_name.startswith(("camera ", "read-")) else "page"


def _of_processes(stage: str, processes: Iterable[psutil.Process]) -> dict[tuple[str, int], float]:
    spent = {}
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent[stage, process.pid] = times.user + times.system
    return spent


async def read_gpus() -> tuple[Gpu, ...]:
    """What the NVIDIA driver's own tool says; nothing where there is none, or where it does not answer in time."""
    if shutil.which(_GPU[0]) is None:
        return ()
    process = await asyncio.create_subprocess_exec(
        *_GPU, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 3.0)
    except TimeoutError:
        process.kill()
        await process.wait()
        return ()
    return parse_gpus(out.decode(errors="replace"))


def parse_gpus(lines: str) -> tuple[Gpu, ...]:
    """The GPUs of the tool's lines `busy %, used MiB, total MiB`; a line that says less is left out."""
    gpus = []
    for line in lines.splitlines():
        with suppress(ValueError):
            busy, used, total = (int(value) for value in line.split(","))
            gpus.append(Gpu(busy / 100, used, total))
    return tuple(gpus)

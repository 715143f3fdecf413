"""Everything about a GPU in one table, within eight minutes: `python -m tests.gpu.device_check`.

Needs torch, transformers and safetensors beside this repository (pictures: greenlet; FlexAttention: a C compiler) and
no network. Right tokens from small models; then speed of random weights at the shapes of SmolVLM-256M and Qwen3-VL-2B:
decode steps, with and without graphs, one by one and made ahead, a prompt, pictures alone and together, what cameras do
to chats. Whatever fails is a row, and the table is printed in any case. Ends with 1 if anything came out wrong.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version

import torch
from torch.nn.attention import flex_attention

from tests.gpu.ahead import ahead_rows
from tests.gpu.equality import equality_rows
from tests.gpu.made_models import FULL, SMALL, Made, Shape, make
from tests.gpu.rates import Rates, measure_rates
from tests.gpu.runners import AHEAD, GRAPHS
from tests.gpu.speed import decode_rows, picture_rows, prefill_rows, together_rows
from tests.gpu.stalls import stall_rows
from tests.gpu.table import Row, attempt, show

WAYS = ("sdpa", "flex", GRAPHS)
LIMIT_S = 420.0
"""No part begins after this long."""
END_S = 465.0
"""The table is printed by then, whatever still runs."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is done; `texts` are lengths of prompts, and of answers, in tokens.

    `TINY` tries the script itself, on any machine, in seconds.
    """

    texts: tuple[tuple[int, ...], int]
    timed: tuple[Shape, ...]
    widths: tuple[int, ...]
    context: int
    prompt_len: int
    repeats: int
    num_gaps: int
    gaps_limit_s: float
    ahead_len: int
    together: tuple[int, ...] = (2, 4, 8)


WHOLE = Extent(
    ((5, 40, 130, 17, 260, 75), 48),
    FULL,
    (1, 8, 64),
    1024,
    2048,
    repeats=10,
    num_gaps=600,
    gaps_limit_s=6.0,
    ahead_len=96,
)
TINY = Extent(((5, 30, 17), 5), SMALL[2:], (1, 3), 40, 70, repeats=1, num_gaps=12, gaps_limit_s=1.0, ahead_len=8)


@dataclass
class Check:
    """The rows so far; each part is announced and stops at nothing but the clock."""

    device: str
    extent: Extent
    has_pictures: bool
    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    current: Row | None = None

    def part(self, part: str, model: str, case: str, work: Callable[[], Iterable[Row]]) -> None:
        """Add the rows of `work`."""
        if time.monotonic() - self.started > LIMIT_S:
            self.rows.append(Row(part, model, case, "", "(not measured: out of time)"))
            return
        print(f"{time.monotonic() - self.started:5.0f} s  {part} {model} {case}", file=sys.stderr, flush=True)
        self.current = Row(part, model, case, "", f"does not end within {END_S:.0f} s")
        for row in attempt(part, model, case, work):
            self.rows.append(row)
        self.current = None
        gc.collect()
        if self.device == "cuda":
            with suppress(RuntimeError):  # of a device that an earlier error has stopped; the next row tells
                torch.cuda.empty_cache()

    def run(self) -> None:
        """All parts, right tokens first."""
        for shape in self._possible(SMALL):
            work = lambda s=shape: equality_rows(s, self.device, (*WAYS, AHEAD), *self.extent.texts)  # noqa: E731
            self.part("equality", shape.name, "", work)
        rates: list[Rates] = []
        self.part("rates", "", "", lambda: _measure(self.device, self.extent is TINY, rates))
        for shape in self._possible(self.extent.timed) if rates else ():
            made: list[Made] = []
            self.part("model", shape.name, "bfloat16", lambda s=shape, m=made: _load(s, self.device, m))
            if made:
                self._time(made[0], rates[0])

    def _time(self, made: Made, rates: Rates) -> None:
        extent = self.extent
        for name in WAYS:
            self.part(
                "decode",
                made.name,
                name,
                lambda b=name: decode_rows(made, b, rates, extent.widths, extent.context, extent.repeats),
            )
            if name == GRAPHS:
                continue  # a prompt is computed as without
            self.part(
                "prefill",
                made.name,
                name,
                lambda b=name: prefill_rows(made, b, rates, extent.prompt_len, extent.repeats),
            )
        widths, length, repeats = extent.widths, extent.ahead_len, min(3, extent.repeats)
        self.part("ahead", made.name, "", lambda: ahead_rows(made, GRAPHS, widths, length, length, repeats))
        self.part("picture", made.name, "", lambda: picture_rows(made, extent.repeats))
        self.part("picture", made.name, "together", lambda: together_rows(made, extent.together, extent.repeats))
        self.part(
            "stalls",
            made.name,
            "",
            lambda: stall_rows(made, extent.num_gaps, extent.gaps_limit_s),
        )

    def _possible(self, shapes: Iterable[Shape]) -> list[Shape]:
        return [shape for shape in shapes if self.has_pictures or not shape.takes_images]


def _measure(device: str, is_tiny: bool, measured: list[Rates]) -> Iterable[Row]:
    measured.append(measure_rates(device, is_tiny))
    figures = (
        f"{measured[0].bytes_per_s / 1e9:,.0f} GB/s copied, {measured[0].flops_per_s / 1e12:,.1f} TFLOP/s bfloat16"
    )
    return [Row("rates", "", "", figures)]


def _load(shape: Shape, device: str, made: list[Made]) -> Iterable[Row]:
    made.append(make(shape, device, torch.bfloat16))
    return [Row("model", shape.name, "bfloat16", f"{made[0].num_weight_bytes / 1e6:,.0f} MB read by a decode step")]


def main() -> int:
    """Print the table. 0: all is well, or there is no GPU; 1: something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to compute")
    parser.add_argument("--tiny", action="store_true", help="small shapes and few steps: tries the script itself")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 0
    if args.device == "cpu":
        # The eager form as it is: what would be compiled for a CPU says nothing of a GPU.
        flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    has_pictures = importlib.util.find_spec("greenlet") is not None
    # The CPU's float32 is what all is compared with; convolutions would be rounded to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    heading = describe(args.device) + ("" if has_pictures else "; skipped without greenlet: all with pictures")
    print(heading, file=sys.stderr, flush=True)
    check = Check(args.device, TINY if args.tiny else WHOLE, has_pictures)
    timer = threading.Timer(END_S, lambda: _print_and_leave(heading, check))
    timer.daemon = True
    timer.start()
    try:
        check.run()
    finally:  # interrupted, too
        timer.cancel()
        num_faults = print_table(heading, check)
    return 1 if num_faults else 0


def describe(device: str) -> str:
    """The device, its driver, and the software on it, in one line."""
    software = f"torch {torch.__version__}, transformers {version('transformers')}"
    if device == "cpu":
        return f"CPU, {software}"
    try:
        properties = torch.cuda.get_device_properties(0)
        memory = f"{properties.total_memory / 2**30:.0f} GiB, capability {properties.major}.{properties.minor}"
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()[0]
    except (OSError, RuntimeError, subprocess.SubprocessError, IndexError) as error:
        return f"{torch.cuda.get_device_name()} ({type(error).__name__} when asked for its driver), {software}"
    return f"{torch.cuda.get_device_name()}, {memory}, driver {driver}, CUDA {torch.version.cuda}, {software}"


def print_table(heading: str, check: Check) -> int:
    """The table of what there is by now; how many rows are faults."""
    rows = [*check.rows, *([check.current] if check.current else [])]
    print(heading)
    print(show(rows))
    num_faults = sum(row.is_fault for row in rows)
    print(f"{num_faults} of {len(rows)} rows are wrong" if num_faults else f"all {len(rows)} rows are well", flush=True)
    return num_faults


def _print_and_leave(heading: str, check: Check) -> None:
    """From a thread of its own: what hangs in a driver does not even end with the program."""
    print_table(heading, check)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

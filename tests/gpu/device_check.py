"""Everything about a GPU in one table, within eight minutes: `python -m tests.gpu.device_check`.

Needs torch, transformers and safetensors beside this repository (pictures: greenlet; FlexAttention: a C compiler) and
no network. Right tokens from small models; then speed of random weights at the shapes of SmolVLM-256M and Qwen3-VL-2B:
decode steps, with and without graphs, a prompt, pictures alone and together, and what cameras do to chats. Ends with 1
if anything came out wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch.nn.attention import flex_attention

from tests.gpu.equality import equality_rows
from tests.gpu.made_models import FULL, SMALL, Made, Shape, make
from tests.gpu.rates import Rates, measure_rates
from tests.gpu.runners import GRAPHS
from tests.gpu.speed import decode_rows, picture_rows, prefill_rows, together_rows
from tests.gpu.stalls import stall_rows
from tests.gpu.table import Row, attempt, show

WAYS = ("sdpa", "flex", GRAPHS)
LIMIT_S = 420.0
"""No part begins after this long."""


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
    together: tuple[int, ...] = (2, 4, 8)


WHOLE = Extent(
    ((5, 40, 130, 17, 260, 75), 48), FULL, (1, 8, 64), 1024, 2048, repeats=10, num_gaps=600, gaps_limit_s=6.0
)
TINY = Extent(((5, 30, 17), 5), SMALL[2:], (1, 3), 40, 70, repeats=1, num_gaps=12, gaps_limit_s=1.0)


@dataclass
class Check:
    """The rows so far; each part is announced and stops at nothing but the clock."""

    device: str
    extent: Extent
    has_pictures: bool
    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def part(self, part: str, model: str, case: str, work: Callable[[], Iterable[Row]]) -> None:
        """Add the rows of `work`."""
        if time.monotonic() - self.started > LIMIT_S:
            self.rows.append(Row(part, model, case, "", "(not measured: out of time)"))
            return
        print(f"{time.monotonic() - self.started:5.0f} s  {part} {model} {case}", file=sys.stderr, flush=True)
        self.rows += attempt(part, model, case, work)

    def run(self) -> None:
        """All parts, right tokens first."""
        for shape in self._possible(SMALL):
            work = lambda s=shape: equality_rows(s, self.device, WAYS, *self.extent.texts)  # noqa: E731
            self.part("equality", shape.name, "", work)
        rates = measure_rates(self.device, self.extent is TINY)
        figures = f"{rates.bytes_per_s / 1e9:,.0f} GB/s copied, {rates.flops_per_s / 1e12:,.1f} TFLOP/s bfloat16"
        self.rows.append(Row("rates", "", "", figures))
        for shape in self._possible(self.extent.timed):
            made: list[Made] = []
            self.part("model", shape.name, "bfloat16", lambda s=shape, m=made: _load(s, self.device, m))
            if made:
                self._time(made[0], rates)

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
    check = Check(args.device, TINY if args.tiny else WHOLE, has_pictures)
    check.run()
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}" + ("" if has_pictures else "; skipped without greenlet: all with pictures")
    )
    print(show(check.rows))
    num_faults = sum(row.is_fault for row in check.rows)
    print(f"{num_faults} of {len(check.rows)} rows are wrong" if num_faults else f"all {len(check.rows)} rows are well")
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main())

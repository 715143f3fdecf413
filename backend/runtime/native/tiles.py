"""The innermost loops, written as LLVM instructions: a tile of T rows times one panel of 32 output columns.

A panel holds its weights in the order the loop reads them, so that a decode step streams the weights once, in order,
and a prompt's chunk finds them in the first-level cache. Every output is summed in the same order whatever T is: a
row's result does not depend on how many rows share its step. Kinds of number here (a third is in `tiles_int4`):

* `f32`: a step is one input column, 32 float weights, one multiply-add for each row.
* `int8`: a step is four input columns, 32 x 4 unsigned weights and four signed activations a row, multiplied and summed
  by one instruction (VNNI). Columns are grouped; each group has its own scales, applied in float.

Knows nothing of models. Importing it needs numba; only `kernels` does so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from backend.runtime.native.vectors import (
    BYTES,
    F32,
    F32S,
    I32,
    I32S,
    I64,
    address,
    as_intrinsic,
    compiled,
    external,
    load,
    splat,
)

VECTORS = 2
"""Vectors of 16 columns in a panel; with 12 rows their sums fill 24 of 32 registers."""
ARGUMENTS = (
    "weights",
    "weights_stride",
    "weight_scales",
    "rows",
    "rows_stride",
    "row_scales",
    "row_offsets",
    "groups_stride",
    "num_groups",
    "num_steps",
    "out",
    "out_stride",
    "bias",
    "accumulate",
)
"""Addresses, strides in bytes (`groups_stride` in entries), counts and a flag; all of them 64-bit integers."""


class Tile:
    """Writes the body of one tile function, `num_rows` rows by one panel, in float32; other numbers refine it.

    `heights` are the numbers of rows that tiles of this kind are made for, the tallest first.
    """

    name = "f32"
    scalar: Any = F32
    heights = (12, 8, 6, 4, 3, 2, 1)

    def __init__(self, function: ir.Function, num_rows: int) -> None:
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.module = function.module
        self.arg: dict[str, Any] = dict(zip(ARGUMENTS, function.args, strict=True))
        self.rows = range(num_rows)
        self.cells = [(row, vector) for row in self.rows for vector in range(VECTORS)]
        self.fma = external(self.module, "llvm.fma.v16f32", F32S, [F32S] * 3)
        self.sums = {cell: cgutils.alloca_once(self.b, F32S) for cell in self.cells}

    def write(self) -> None:
        """Everything, from the first block to the return."""
        b, arg = self.b, self.arg
        self._begin()
        group_bytes = b.mul(arg["num_steps"], arg["weights_stride"])
        row_bytes = b.mul(arg["num_steps"], I64(4))
        with cgutils.for_range(b, arg["num_groups"]) as group:
            weights = b.add(arg["weights"], b.mul(group.index, group_bytes))
            rows = b.add(arg["rows"], b.mul(group.index, row_bytes))
            self.begin_group(group.index)
            with cgutils.for_range(b, arg["num_steps"]) as step:
                self._step(b.add(weights, b.mul(step.index, arg["weights_stride"])), address(b, rows, (step.index, 4)))
            self.end_group(group.index)
        for cell in self.cells:
            pointer = b.inttoptr(self._out(*cell), F32S.as_pointer())
            b.store(b.load(self.sums[cell]), pointer, align=4)
        b.ret_void()

    def begin_group(self, group: Any) -> None:
        """What precedes a group's steps."""

    def load_columns(self, weights: Any) -> list[Any]:
        """One step's weights, a vector for each 16 outputs."""
        return [load(self.b, address(self.b, weights, (I64(1), 64 * v)), F32S) for v in range(VECTORS)]

    def multiply(self, cell: tuple[int, int], column: Any, value: Any) -> None:
        """Add one step's products to a cell."""
        place = self.sums[cell]
        self.b.store(self.b.call(self.fma, [column, value, self.b.load(place)]), place)

    def end_group(self, group: Any) -> None:
        """What follows a group's steps."""

    def _step(self, weights: Any, rows: Any) -> None:
        b = self.b
        columns = self.load_columns(weights)
        for row in self.rows:
            scalar = load(b, address(b, rows, (self.arg["rows_stride"], row)), self.scalar)
            value = splat(b, scalar, F32S if self.scalar is F32 else I32S)
            for vector in range(VECTORS):
                self.multiply((row, vector), columns[vector], value)

    def _out(self, row: int, vector: int) -> Any:
        return address(self.b, self.arg["out"], (self.arg["out_stride"], row), (I64(1), 64 * vector))

    def _begin(self) -> None:
        b = self.b
        for row, vector in self.cells:
            bias = load(b, address(b, self.arg["bias"], (I64(1), 64 * vector)), F32S)
            b.store(bias, self.sums[row, vector])
        with b.if_then(b.icmp_signed("!=", self.arg["accumulate"], I64(0))):
            for cell in self.cells:
                b.store(b.fadd(b.load(self.sums[cell]), load(b, self._out(*cell), F32S)), self.sums[cell])


class Int8Tile(Tile):
    """The same with int8 products, counted in whole numbers within a group."""

    name = "int8"
    scalar = I32
    heights = (6, 4, 3, 2, 1)
    """With more rows, counts beside sums would not fit into the registers: slower by 7 %, as measured."""

    def __init__(self, function: ir.Function, num_rows: int) -> None:
        super().__init__(function, num_rows)
        self.dot = external(self.module, "llvm.x86.avx512.vpdpbusd.512", I32S, [I32S, BYTES, BYTES])
        self.counts = {cell: cgutils.alloca_once(self.b, I32S) for cell in self.cells}

    def of_group(self, table: str, row: int, group: Any, kind: Any) -> Any:
        """What an argument's table says of a row and a group."""
        return load(self.b, address(self.b, self.arg[table], (self.arg["groups_stride"], 4 * row), (group, 4)), kind)

    def begin_group(self, group: Any) -> None:
        """Weights are stored plus 128, to be unsigned; `row_offsets` takes 128 times the row's sum off again."""
        for row in self.rows:
            offset = splat(self.b, self.of_group("row_offsets", row, group, I32), I32S)
            for vector in range(VECTORS):
                self.b.store(offset, self.counts[row, vector])

    def load_columns(self, weights: Any) -> list[Any]:
        """Four unsigned bytes for each output."""
        return [load(self.b, address(self.b, weights, (I64(1), 64 * v)), I32S) for v in range(VECTORS)]

    def multiply(self, cell: tuple[int, int], column: Any, value: Any) -> None:
        """Four products and their sum for each output."""
        b, place = self.b, self.counts[cell]
        b.store(b.call(self.dot, [b.load(place), b.bitcast(column, BYTES), b.bitcast(value, BYTES)]), place)

    def end_group(self, group: Any) -> None:
        """Counts become floats by the scales of both sides."""
        b = self.b
        scales = [
            load(b, address(b, self.arg["weight_scales"], (group, 64 * VECTORS), (I64(1), 64 * v)), F32S)
            for v in range(VECTORS)
        ]
        for row in self.rows:
            scale = splat(b, self.of_group("row_scales", row, group, F32), F32S)
            for vector in range(VECTORS):
                self.scale_count((row, vector), b.fmul(scales[vector], scale))

    def scale_count(self, cell: tuple[int, int], scale: Any) -> None:
        """Add a group's count times its scale to the sum."""
        b, place = self.b, self.sums[cell]
        count = b.sitofp(b.load(self.counts[cell]), F32S)
        b.store(b.call(self.fma, [count, scale, b.load(place)]), place)


def _write_panel(function: ir.Function, kind: type[Tile]) -> None:
    """All rows times one panel: as many tiles of each height, the tallest first, as the rows left fill."""
    b = ir.IRBuilder(function.append_basic_block("entry"))
    num_rows, tallest, *given = function.args
    arg = dict(zip(ARGUMENTS, given, strict=True))
    done: Any = I64(0)
    for height in kind.heights:
        tile = _tile_of(function.module, kind, height)
        left = b.sub(num_rows, done)
        whole = b.select(b.icmp_signed("<=", I64(height), tallest), b.udiv(left, I64(height)), I64(0))
        with cgutils.for_range(b, whole) as turn:
            row = b.add(done, b.mul(turn.index, I64(height)))
            entries = b.mul(row, b.mul(arg["groups_stride"], I64(4)))
            moved = {
                "rows": b.add(arg["rows"], b.mul(row, arg["rows_stride"])),
                "row_scales": b.add(arg["row_scales"], entries),
                "row_offsets": b.add(arg["row_offsets"], entries),
                "out": b.add(arg["out"], b.mul(row, arg["out_stride"])),
            }
            b.call(tile, [moved.get(name, arg[name]) for name in ARGUMENTS])
        done = b.add(done, b.mul(whole, I64(height)))
    b.ret_void()


def _tile_of(module: ir.Module, kind: type[Tile], num_rows: int) -> ir.Function:
    """The tile function, written once a module and never inlined."""
    name = f"watchword_tile_{kind.name}_{num_rows}"
    found = module.globals.get(name)
    if found is None:
        found = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS)), name)
        found.linkage = "linkonce_odr"
        found.attributes.add("noinline")
        kind(found, num_rows).write()
    return found


def make_panel(kind: type[Tile]) -> Callable[..., Any]:
    """All rows times one panel, for compiled code: called with one tuple, `num_rows`, `tallest` and `ARGUMENTS`."""
    return as_intrinsic(
        f"watchword_panel_{kind.name}", 2 + len(ARGUMENTS), lambda function: _write_panel(function, kind)
    )


_f32, _int8 = make_panel(Tile), make_panel(Int8Tile)


@compiled
def panel_f32(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate):  # noqa: ANN001, ANN201
    """All rows times one panel, in tiles of at most `tallest` rows.

    `weights` (address, bytes from step to step, scales' address), `rows` (address, bytes from row to row, scales'
    address, offsets' address, entries of those from row to row), `out` (address, bytes from row to row).
    """
    _f32((num_rows, tallest) + weights + rows + (num_groups, num_steps) + out + (bias, accumulate))  # noqa: RUF005


@compiled
def panel_int8(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate):  # noqa: ANN001, ANN201
    """The same with int8 weights and rows."""
    _int8((num_rows, tallest) + weights + rows + (num_groups, num_steps) + out + (bias, accumulate))  # noqa: RUF005

"""The innermost loops, written as LLVM instructions: a tile of T rows times one panel of 32 output columns.

A panel holds its weights in the order the loop reads them, 128 bytes a step, so that a decode step streams the weights
once, in order, and a prompt's chunk finds them in the first-level cache. Every output is summed in the same order
whatever T is: a row's result does not depend on how many rows share its step. Two kinds of number:

* `f32`: a step is one input column, 32 float weights, one multiply-add for each row.
* `int8`: a step is four input columns, 32 x 4 unsigned weights and four signed activations a row, multiplied and summed
  by one instruction (VNNI). Columns are grouped; each group has its own scales, applied in float.

Knows nothing of models. Importing it needs numba; only `kernels` does so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

compiled = partial(njit, cache=True, nogil=True, error_model="numpy")
"""Compiled on first call and kept on disk. Division by zero gives infinity, as a loop that fills vectors needs it."""

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
LANES = 16
VECTORS = 2
"""Vectors of 16 columns in a panel; with 12 rows their sums fill 24 of 32 registers."""
I32S, F32S, BYTES = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES), ir.VectorType(I8, 64)
MASK = ir.VectorType(ir.IntType(1), LANES)

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


def _address(builder: ir.IRBuilder, base: Any, *terms: tuple[Any, int]) -> Any:
    """Base + sum of index * stride."""
    for index, stride in terms:
        base = builder.add(base, builder.mul(index, I64(stride)))
    return base


def load(builder: ir.IRBuilder, address: Any, kind: Any) -> Any:
    """What lies at an address."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def splat(builder: ir.IRBuilder, value: Any, kind: ir.VectorType) -> Any:
    """A vector of one value."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(I32S, [0] * LANES))


def external(module: ir.Module, name: str, kind: Any, arguments: Sequence[Any]) -> Any:
    """An LLVM function by name, declared once a module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, arguments), name)


class _Tile:
    """Writes the body of one tile function: `num_rows` rows by one panel, float or int8."""

    def __init__(self, function: ir.Function, num_rows: int, *, int8: bool) -> None:
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.arg: dict[str, Any] = dict(zip(ARGUMENTS, function.args, strict=True))
        self.rows = range(num_rows)
        self.cells = [(row, vector) for row in self.rows for vector in range(VECTORS)]
        self.int8 = int8
        module = function.module
        self.fma = external(module, "llvm.fma.v16f32", F32S, [F32S] * 3)
        if int8:
            self.dot = external(module, "llvm.x86.avx512.vpdpbusd.512", I32S, [I32S, BYTES, BYTES])
        self.sums = {cell: cgutils.alloca_once(self.b, F32S) for cell in self.cells}
        self.counts = {cell: cgutils.alloca_once(self.b, I32S) for cell in self.cells if int8}

    def write(self) -> None:
        b, arg = self.b, self.arg
        self._begin()
        group_bytes = b.mul(arg["num_steps"], arg["weights_stride"])
        row_bytes = b.mul(arg["num_steps"], I64(4))
        with cgutils.for_range(b, arg["num_groups"]) as group:
            weights = b.add(arg["weights"], b.mul(group.index, group_bytes))
            rows = b.add(arg["rows"], b.mul(group.index, row_bytes))
            if self.int8:
                self._begin_group(group.index)
            with cgutils.for_range(b, arg["num_steps"]) as step:
                self._step(b.add(weights, b.mul(step.index, arg["weights_stride"])), _address(b, rows, (step.index, 4)))
            if self.int8:
                self._end_group(group.index)
        for cell in self.cells:
            pointer = b.inttoptr(self._out(*cell), F32S.as_pointer())
            b.store(b.load(self.sums[cell]), pointer, align=4)
        b.ret_void()

    def _out(self, row: int, vector: int) -> Any:
        return _address(self.b, self.arg["out"], (self.arg["out_stride"], row), (I64(1), 64 * vector))

    def _begin(self) -> None:
        b = self.b
        for row, vector in self.cells:
            bias = load(b, _address(b, self.arg["bias"], (I64(1), 64 * vector)), F32S)
            b.store(bias, self.sums[row, vector])
        with b.if_then(b.icmp_signed("!=", self.arg["accumulate"], I64(0))):
            for cell in self.cells:
                b.store(b.fadd(b.load(self.sums[cell]), load(b, self._out(*cell), F32S)), self.sums[cell])

    def _of_group(self, table: str, row: int, group: Any, kind: Any) -> Any:
        return load(self.b, _address(self.b, self.arg[table], (self.arg["groups_stride"], 4 * row), (group, 4)), kind)

    def _begin_group(self, group: Any) -> None:
        """Weights are stored plus 128, to be unsigned; `row_offsets` takes 128 times the row's sum off again."""
        for row in self.rows:
            offset = splat(self.b, self._of_group("row_offsets", row, group, I32), I32S)
            for vector in range(VECTORS):
                self.b.store(offset, self.counts[row, vector])

    def _step(self, weights: Any, rows: Any) -> None:
        b = self.b
        kind, scalar = (I32S, I32) if self.int8 else (F32S, F32)
        columns = [load(b, _address(b, weights, (I64(1), 64 * v)), kind) for v in range(VECTORS)]
        for row in self.rows:
            value = splat(b, load(b, _address(b, rows, (self.arg["rows_stride"], row)), scalar), kind)
            for vector in range(VECTORS):
                if self.int8:
                    cell = self.counts[row, vector]
                    operands = [b.load(cell), b.bitcast(columns[vector], BYTES), b.bitcast(value, BYTES)]
                    b.store(b.call(self.dot, operands), cell)
                else:
                    cell = self.sums[row, vector]
                    b.store(b.call(self.fma, [columns[vector], value, b.load(cell)]), cell)

    def _end_group(self, group: Any) -> None:
        b = self.b
        scales = [
            load(b, _address(b, self.arg["weight_scales"], (group, 64 * VECTORS), (I64(1), 64 * v)), F32S)
            for v in range(VECTORS)
        ]
        for row in self.rows:
            scale = splat(b, self._of_group("row_scales", row, group, F32), F32S)
            for vector in range(VECTORS):
                cell = self.sums[row, vector]
                count = b.sitofp(b.load(self.counts[row, vector]), F32S)
                b.store(b.call(self.fma, [count, b.fmul(scales[vector], scale), b.load(cell)]), cell)


def _write_dots(function: ir.Function, num_heads: int) -> None:
    """scores[head, key] = query[head] . keys[key] for one key head's queries and keys that follow one another."""
    b = ir.IRBuilder(function.append_basic_block("entry"))
    query, query_stride, keys, keys_stride, num_keys, dim, scores, scores_stride = function.args
    module = function.module
    fma = external(module, "llvm.fma.v16f32", F32S, [F32S] * 3)
    total = external(module, "llvm.vector.reduce.fadd.v16f32", F32, [F32, F32S])
    masked = external(module, "llvm.masked.load.v16f32.p0", F32S, [F32S.as_pointer(), MASK, F32S])
    zeros = ir.Constant(F32S, [0.0] * LANES)
    sums = [cgutils.alloca_once(b, F32S) for _ in range(num_heads)]
    rest = b.and_(dim, I64(LANES - 1))
    lanes = ir.Constant(I32S, list(range(LANES)))
    inside = b.icmp_signed("<", lanes, splat(b, b.trunc(rest, I32), I32S))
    whole_bytes = b.mul(b.lshr(dim, I64(4)), I64(64))

    def load_rest(address: Any) -> Any:
        pointer = b.inttoptr(b.add(address, whole_bytes), F32S.as_pointer())
        return b.call(masked, [pointer, inside, zeros])

    with cgutils.for_range(b, num_keys) as key:
        here = b.add(keys, b.mul(key.index, keys_stride))
        for cell in sums:
            b.store(zeros, cell)
        with cgutils.for_range(b, b.lshr(dim, I64(4))) as chunk:
            part = load(b, _address(b, here, (chunk.index, 64)), F32S)
            for head, cell in enumerate(sums):
                of_query = load(b, _address(b, query, (query_stride, head), (chunk.index, 64)), F32S)
                b.store(b.call(fma, [part, of_query, b.load(cell)]), cell)
        with b.if_then(b.icmp_signed("!=", rest, I64(0))):
            part = load_rest(here)
            for head, cell in enumerate(sums):
                of_query = load_rest(_address(b, query, (query_stride, head)))
                b.store(b.call(fma, [part, of_query, b.load(cell)]), cell)
        for head, cell in enumerate(sums):
            score = b.call(total, [F32(-0.0), b.load(cell)], fastmath=("reassoc",))
            b.store(score, b.inttoptr(_address(b, scores, (scores_stride, head), (key.index, 4)), F32.as_pointer()))
    b.ret_void()


def as_intrinsic(name: str, num_arguments: int, write: Callable[[ir.Function], None]) -> Callable[..., Any]:
    """A numba intrinsic of 64-bit integers that calls what `write` writes: compiled once per module, never inlined."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        function = builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [I64] * num_arguments)
            function = ir.Function(builder.module, kind, name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            write(function)
        builder.call(function, [builder.extract_value(arguments[0], i) for i in range(num_arguments)])
        return context.get_dummy_value()

    @intrinsic
    def call(context: Any, arguments: Any) -> Any:
        return types.void(types.UniTuple(types.int64, num_arguments)), generate

    return call


def _make_tile(num_rows: int, *, int8: bool) -> Callable[..., Any]:
    name = f"watchword_tile_{'int8' if int8 else 'f32'}_{num_rows}"
    return as_intrinsic(name, len(ARGUMENTS), lambda function: _Tile(function, num_rows, int8=int8).write())


_dots_1, _dots_2, _dots_3, _dots_4 = (
    as_intrinsic(f"watchword_dots_{n}", 8, lambda function, n=n: _write_dots(function, n)) for n in (1, 2, 3, 4)
)
_f32_1, _f32_2, _f32_3, _f32_4, _f32_6, _f32_8, _f32_12 = (_make_tile(n, int8=False) for n in (1, 2, 3, 4, 6, 8, 12))
_int8_1, _int8_2, _int8_3, _int8_4, _int8_6, _int8_8, _int8_12 = (
    _make_tile(n, int8=True) for n in (1, 2, 3, 4, 6, 8, 12)
)


@compiled
def panel_f32(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate):  # noqa: ANN001, ANN201
    """All rows times one panel, in tiles of 12, 8, 6, 4, 3, 2 or 1 rows, at most `tallest`.

    `weights` (address, bytes from step to step, scales' address), `rows` (address, bytes from row to row, scales'
    address, offsets' address, entries of those from row to row), `out` (address, bytes from row to row).
    """
    done = 0
    while done < num_rows:
        left = min(num_rows - done, tallest)
        arguments = (
            weights[0], weights[1], weights[2], rows[0] + done * rows[1], rows[1], rows[2] + 4 * done * rows[4],
            rows[3] + 4 * done * rows[4], rows[4], num_groups, num_steps, out[0] + done * out[1], out[1], bias,
            accumulate,
        )  # fmt: skip
        if left >= 12:
            _f32_12(arguments)
            done += 12
        elif left >= 8:
            _f32_8(arguments)
            done += 8
        elif left >= 6:
            _f32_6(arguments)
            done += 6
        elif left >= 4:
            _f32_4(arguments)
            done += 4
        elif left >= 3:
            _f32_3(arguments)
            done += 3
        elif left >= 2:
            _f32_2(arguments)
            done += 2
        else:
            _f32_1(arguments)
            done += 1


@compiled
def panel_int8(num_rows, tallest, weights, rows, num_groups, num_steps, out, bias, accumulate):  # noqa: ANN001, ANN201
    """All rows times one panel, in tiles of 12, 8, 6, 4, 3, 2 or 1 rows, at most `tallest`.

    `weights` (address, bytes from step to step, scales' address), `rows` (address, bytes from row to row, scales'
    address, offsets' address, entries of those from row to row), `out` (address, bytes from row to row).
    """
    done = 0
    while done < num_rows:
        left = min(num_rows - done, tallest)
        arguments = (
            weights[0], weights[1], weights[2], rows[0] + done * rows[1], rows[1], rows[2] + 4 * done * rows[4],
            rows[3] + 4 * done * rows[4], rows[4], num_groups, num_steps, out[0] + done * out[1], out[1], bias,
            accumulate,
        )  # fmt: skip
        if left >= 12:
            _int8_12(arguments)
            done += 12
        elif left >= 8:
            _int8_8(arguments)
            done += 8
        elif left >= 6:
            _int8_6(arguments)
            done += 6
        elif left >= 4:
            _int8_4(arguments)
            done += 4
        elif left >= 3:
            _int8_3(arguments)
            done += 3
        elif left >= 2:
            _int8_2(arguments)
            done += 2
        else:
            _int8_1(arguments)
            done += 1


@compiled
def dots(num_heads, query, query_stride, keys, keys_stride, num_keys, dim, scores, scores_stride):  # noqa: ANN001, ANN201
    """scores[head, key] = query[head] . keys[key], all of `dim` floats, given as addresses and strides in bytes."""
    done = 0
    while done < num_heads:
        left = num_heads - done
        arguments = (
            query + done * query_stride, query_stride, keys, keys_stride, num_keys, dim, scores + done * scores_stride,
            scores_stride,
        )  # fmt: skip
        if left >= 4:
            _dots_4(arguments)
            done += 4
        elif left == 3:
            _dots_3(arguments)
            done += 3
        elif left == 2:
            _dots_2(arguments)
            done += 2
        else:
            _dots_1(arguments)
            done += 1

"""Softmax of a row of scores into int8, as LLVM instructions: loops over so few numbers are not vectorised well.

Weights are quantised in groups of 64, each with a scale of its own: so a row keeps its many small weights, too.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from backend.runtime.native.vectors import F32, F32S, I8, I32, I32S, I64, LANES, as_intrinsic, external, load, splat

GROUP = 64
_VECTORS = GROUP // LANES
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.44269504, 0.693359375, -2.12194440e-4
_POLYNOMIAL = (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 5.0000001e-1)


class _Row:
    """Writes the body: scores float32 [groups * 64] are overwritten; what it leaves are weights, scales and offsets."""

    def __init__(self, function: ir.Function) -> None:
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.scores, self.num_groups, self.factor, self.weights, self.scales, self.offsets = function.args
        module = function.module
        self.fma = external(module, "llvm.fma.v16f32", F32S, [F32S] * 3)
        self.floor = external(module, "llvm.floor.v16f32", F32S, [F32S])
        self.largest = external(module, "llvm.vector.reduce.fmax.v16f32", F32, [F32S])
        self.total = external(module, "llvm.vector.reduce.fadd.v16f32", F32, [F32, F32S])
        self.count = external(module, "llvm.vector.reduce.add.v16i32", I32, [I32S])

    def write(self) -> None:
        b = self.b
        peak = splat(b, self._peak(), F32S)
        factor = splat(b, load(b, self.factor, F32), F32S)
        total = cgutils.alloca_once(b, F32S)
        b.store(_constant(0.0), total)
        with cgutils.for_range(b, self.num_groups) as group:
            self._group(group.index, peak, factor, total)
        whole = b.call(self.total, [F32(-0.0), b.load(total)], fastmath=("reassoc",))
        inverse = b.fdiv(F32(1.0), whole)
        with cgutils.for_range(b, self.num_groups) as group:
            place = b.inttoptr(b.add(self.scales, b.mul(group.index, I64(4))), F32.as_pointer())
            b.store(b.fmul(b.load(place), inverse), place)
        b.ret_void()

    def _peak(self) -> Any:
        b = self.b
        tops = [cgutils.alloca_once(b, F32S) for _ in range(_VECTORS)]
        for vector, top in enumerate(tops):
            b.store(load(b, b.add(self.scores, I64(64 * vector)), F32S), top)
        with cgutils.for_range(b, self.num_groups) as group:
            for vector, top in enumerate(tops):
                b.store(self._greater(b.load(top), load(b, self._at(self.scores, group.index, vector), F32S)), top)
        highest = b.load(tops[0])
        for top in tops[1:]:
            highest = self._greater(highest, b.load(top))
        return b.call(self.largest, [highest])

    def _group(self, index: Any, peak: Any, factor: Any, total: Any) -> None:
        b = self.b
        exps = []
        for vector in range(_VECTORS):
            score = load(b, self._at(self.scores, index, vector), F32S)
            exps.append(self._exponential(b.fmul(b.fsub(score, peak), factor)))
        for exp in exps:
            b.store(b.fadd(b.load(total), exp), total)
        highest = exps[0]
        for exp in exps[1:]:
            highest = self._greater(highest, exp)
        top = b.call(self.largest, [highest])
        scale = splat(b, b.fdiv(F32(127.0), top), F32S)
        counts = ir.Constant(I32S, [0] * LANES)
        for vector, exp in enumerate(exps):
            # All is positive: to add half and to cut off is to round.
            whole = b.fptosi(b.call(self.fma, [exp, scale, _constant(0.5)]), I32S)
            counts = b.add(counts, whole)
            bytes_ = ir.VectorType(I8, LANES)
            place = b.add(self.weights, b.add(b.mul(index, I64(GROUP)), I64(LANES * vector)))
            b.store(b.trunc(whole, bytes_), b.inttoptr(place, bytes_.as_pointer()), align=1)
        here = b.mul(index, I64(4))
        b.store(b.fmul(top, F32(1 / 127.0)), b.inttoptr(b.add(self.scales, here), F32.as_pointer()))
        offset = b.mul(b.call(self.count, [counts]), I32(-128))
        b.store(offset, b.inttoptr(b.add(self.offsets, here), I32.as_pointer()))

    def _at(self, base: Any, group: Any, vector: int) -> Any:
        return self.b.add(base, self.b.add(self.b.mul(group, I64(4 * GROUP)), I64(64 * vector)))

    def _greater(self, one: Any, other: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", one, other), one, other)

    def _exponential(self, x: Any) -> Any:
        """e^x for x <= 0, to 2 units in the last place; the same polynomial as `elementwise.exponential`."""
        b = self.b
        x = self._greater(x, _constant(-87.0))
        n = b.call(self.floor, [b.call(self.fma, [x, _constant(_LOG2E), _constant(0.5)])])
        r = b.call(self.fma, [n, _constant(-_LN2_HIGH), x])
        r = b.call(self.fma, [n, _constant(-_LN2_LOW), r])
        p = _constant(_POLYNOMIAL[0])
        for term in _POLYNOMIAL[1:]:
            p = b.call(self.fma, [p, r, _constant(term)])
        p = b.call(self.fma, [b.fmul(p, r), r, b.fadd(r, _constant(1.0))])
        exponent = b.shl(b.add(b.fptosi(n, I32S), ir.Constant(I32S, [127] * LANES)), ir.Constant(I32S, [23] * LANES))
        return b.fmul(p, b.bitcast(exponent, F32S))


def _constant(value: float) -> ir.Constant:
    return ir.Constant(F32S, [value] * LANES)


soften = as_intrinsic("watchword_soften", 6, lambda function: _Row(function).write())
"""Called with one tuple of int64: addresses of scores, number of groups, addresses of the factor that scores are
multiplied by (float32), weights int8, scales float32 and offsets int32 (-128 times the sum) of the groups."""

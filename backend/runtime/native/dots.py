"""Scalar products of a few rows with many others, written as LLVM instructions: attention scores of single rows."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from backend.runtime.native.vectors import (
    F32,
    F32S,
    I32,
    I32S,
    I64,
    LANES,
    MASK,
    address,
    as_intrinsic,
    compiled,
    external,
    load,
    splat,
)


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

    def load_rest(place: Any) -> Any:
        pointer = b.inttoptr(b.add(place, whole_bytes), F32S.as_pointer())
        return b.call(masked, [pointer, inside, zeros])

    with cgutils.for_range(b, num_keys) as key:
        here = b.add(keys, b.mul(key.index, keys_stride))
        for cell in sums:
            b.store(zeros, cell)
        with cgutils.for_range(b, b.lshr(dim, I64(4))) as chunk:
            part = load(b, address(b, here, (chunk.index, 64)), F32S)
            for head, cell in enumerate(sums):
                of_query = load(b, address(b, query, (query_stride, head), (chunk.index, 64)), F32S)
                b.store(b.call(fma, [part, of_query, b.load(cell)]), cell)
        with b.if_then(b.icmp_signed("!=", rest, I64(0))):
            part = load_rest(here)
            for head, cell in enumerate(sums):
                of_query = load_rest(address(b, query, (query_stride, head)))
                b.store(b.call(fma, [part, of_query, b.load(cell)]), cell)
        for head, cell in enumerate(sums):
            score = b.call(total, [F32(-0.0), b.load(cell)], fastmath=("reassoc",))
            b.store(score, b.inttoptr(address(b, scores, (scores_stride, head), (key.index, 4)), F32.as_pointer()))
    b.ret_void()


_dots_1, _dots_2, _dots_3, _dots_4 = (
    as_intrinsic(f"watchword_dots_{n}", 8, lambda function, n=n: _write_dots(function, n)) for n in (1, 2, 3, 4)
)


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

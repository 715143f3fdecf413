"""The words that hand-written loops are made of: vectors of 16 numbers in LLVM's terms, and how numba calls such code.

Knows nothing of what is computed. Importing it needs numba.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

compiled = partial(njit, cache=True, nogil=True, error_model="numpy")
"""Compiled on first call and kept on disk. Division by zero gives infinity, as a loop that fills vectors needs it."""

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
LANES = 16
I32S, F32S, BYTES = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES), ir.VectorType(I8, 64)
F16S = ir.VectorType(ir.HalfType(), LANES)
MASK = ir.VectorType(ir.IntType(1), LANES)


def address(builder: ir.IRBuilder, base: Any, *terms: tuple[Any, int]) -> Any:
    """Base + sum of index * stride."""
    for index, stride in terms:
        base = builder.add(base, builder.mul(index, I64(stride)))
    return base


def load(builder: ir.IRBuilder, place: Any, kind: Any) -> Any:
    """What lies at an address."""
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=2 if kind == F16S else 4)


def splat(builder: ir.IRBuilder, value: Any, kind: ir.VectorType) -> Any:
    """A vector of one value."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(I32S, [0] * LANES))


def external(module: ir.Module, name: str, kind: Any, arguments: Sequence[Any]) -> Any:
    """An LLVM function by name, declared once a module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, arguments), name)


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

"""64 rows per machine word: the vector operations of `foretune.models.trees.compiled_trees`.

A yes-or-no question is answered for 64 rows by one 64-bit integer, and for more by a vector of
them. LLVM compiles each function to mask instructions (AVX-512), or a few others elsewhere.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from foretune.collect.kernels import simd
from foretune.collect.kernels.simd import Vector

# Type checkers see Numba's context as one more argument.
operation: Any = intrinsic(prefer_literal=True)
add: Any = simd.add
load: Any = simd.load
store: Any = simd.store

WORD = 64
"""Rows in a word."""
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


def _filled(builder: Any, scalar: Any, lanes: int) -> Any:
    vector = ir.VectorType(scalar.type, lanes)
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(_INT32, 0))
    zeros = ir.Constant(ir.VectorType(_INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, nothing, zeros)


@operation
def no_rows(typingctx: Any, words: Any) -> Any:
    """Return ``words`` words of zeros."""
    vector = Vector(types.uint64, words.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(vector), None)

    return vector(words), codegen


@operation
def both(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the rows in ``a`` and ``b``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.and_(*args)

    return a(a, b), codegen


@operation
def without(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the rows in ``a`` but not in ``b``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.and_(args[0], builder.not_(args[1]))

    return a(a, b), codegen


@operation
def either(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the rows in ``a`` or ``b``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.or_(*args)

    return a(a, b), codegen


@operation
def below(typingctx: Any, values: Any, start: Any, bound: Any) -> Any:
    """Return which of 64 float32 values, from ``start`` on, are below a bound."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        vector = ir.VectorType(ir.FloatType(), WORD)
        address = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        rows = builder.load(address, align=4)
        less = builder.fcmp_ordered("<", rows, _filled(builder, args[2], WORD))
        return builder.bitcast(less, _INT64)

    return types.uint64(values, types.intp, types.float32), codegen


@operation
def one_each(typingctx: Any, rows: Any, number: Any) -> Any:
    """Return 64 bytes: ``number`` for the rows in the word ``rows``, 0 for the others."""
    vector = Vector(types.uint8, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        there = builder.bitcast(args[0], ir.VectorType(ir.IntType(1), WORD))
        numbers = _filled(builder, args[1], WORD)
        return builder.select(there, numbers, ir.Constant(numbers.type, None))

    return vector(types.uint64, types.uint8), codegen


@operation
def one_of_eight(typingctx: Any, values: Any, first: Any, a: Any, b: Any, c: Any) -> Any:
    """Return one of the eight values from ``first`` on, for each of 64 rows.

    Words ``a``, ``b`` and ``c`` hold bits 0, 1 and 2 of each row's index.
    """
    vector = Vector(types.float32, WORD)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        eight = [builder.add(args[1], ir.Constant(args[1].type, i)) for i in range(8)]
        left = [_filled(builder, builder.load(builder.gep(data, [i])), WORD) for i in eight]
        for word in args[2:]:
            there = builder.bitcast(word, ir.VectorType(ir.IntType(1), WORD))
            pairs = zip(left[::2], left[1::2], strict=True)
            left = [builder.select(there, odd, even) for even, odd in pairs]
        return left[0]

    return vector(values, types.intp, types.uint64, types.uint64, types.uint64), codegen

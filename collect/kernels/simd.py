"""SIMD vectors for Numba kernels: operations on ``<lanes x float>`` values.

Numba leaves vectorization to LLVM. A tuned kernel chooses its vector width. These intrinsics add a
vector type to Numba that lives in a register, so an inner loop reads like its instructions::

    acc = fma(load(a, i, LANES), load(b, i, LANES), acc)

LLVM splits vectors wider than the machine's, so every width runs everywhere. Lanes are floats in
single or double precision, or 32-bit integers (quantized weights before their conversion).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic

_INT32 = ir.IntType(32)


class Vector(types.Type):
    """Numba's type of ``lanes`` numbers of scalar type ``element``."""

    def __init__(self, element: types.Type, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"Vector({element}, {lanes})")


@register_default(Vector)
class VectorModel(PrimitiveModel):
    """Represents `Vector` as an LLVM vector, which is held in a register."""

    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        element = dmm.lookup(fe_type.element).get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(element, fe_type.lanes))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, to: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


def _overloaded(builder: Any, name: str, vector: Any, args: list[Any]) -> Any:
    """Call an LLVM intrinsic whose arguments and result are all of type ``vector``."""
    suffix = f"v{vector.count}{'f32' if isinstance(vector.element, ir.FloatType) else 'f64'}"
    function_type = ir.FunctionType(vector, [vector] * len(args))
    function = builder.module.declare_intrinsic(f"llvm.{name}.{suffix}", (), function_type)
    return builder.call(function, args)


def _splat(builder: Any, scalar: Any, count: int) -> Any:
    vector = ir.VectorType(scalar.type, count)
    first = builder.insert_element(
        ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_INT32, 0)
    )
    zeros = ir.Constant(ir.VectorType(_INT32, count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def _constant(like: Any, value: float) -> Any:
    return ir.Constant(like, [value] * like.count)


def _lane_mask(builder: Any, count: Any, lanes: int) -> Any:
    """Return a mask of the first ``count`` lanes: none if it is negative, at most all."""
    lane_count = ir.Constant(count.type, lanes)
    count = builder.select(builder.icmp_signed("<", count, lane_count), count, lane_count)
    none = ir.Constant(count.type, 0)
    count = builder.select(builder.icmp_signed(">", count, none), count, none)
    numbers = ir.Constant(ir.VectorType(_INT32, lanes), list(range(lanes)))
    return builder.icmp_signed("<", numbers, _splat(builder, builder.trunc(count, _INT32), lanes))


def _masked(builder: Any, action: str, result: Any, vector: Any, args: list[Any]) -> Any:
    bits = "f32" if isinstance(vector.element, ir.FloatType) else "f64"
    function_type = ir.FunctionType(result, [a.type for a in args])
    name = f"llvm.masked.{action}.v{vector.count}{bits}.p0"
    return builder.call(builder.module.declare_intrinsic(name, (), function_type), args)


def _reduce_halves(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Reduce the lanes to one by repeatedly combining halves."""
    count = vector.type.count
    while count > 1:
        count //= 2
        half = ir.VectorType(_INT32, count)
        low = ir.Constant(half, list(range(count)))
        high = ir.Constant(half, list(range(count, 2 * count)))
        undefined = ir.Constant(vector.type, ir.Undefined)
        vector = combine(
            builder.shuffle_vector(vector, undefined, low),
            builder.shuffle_vector(vector, undefined, high),
        )
    return builder.extract_element(vector, ir.Constant(_INT32, 0))


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Load ``lanes`` consecutive elements of the flat C-order ``array`` from ``index`` on."""
    vector = Vector(array.dtype, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = context.get_value_type(sig.return_type)
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], to)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a vector to the flat C-order ``array`` from ``index`` on."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], args[2].type)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic(prefer_literal=True)
def load_first(typingctx: Any, array: Any, index: Any, count: Any, lanes: Any) -> Any:
    """Load ``count`` elements of the flat C-order ``array`` from ``index`` on; other lanes are 0.

    Memory beyond them is not touched. A ``count`` below 0 means none, above ``lanes`` all.
    """
    vector = Vector(array.dtype, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = context.get_value_type(sig.return_type)
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], to)
        align = ir.Constant(_INT32, array.dtype.bitwidth // 8)
        mask = _lane_mask(builder, args[2], to.count)
        zeros = ir.Constant(to, None)
        return _masked(builder, "load", to, to, [pointer, align, mask, zeros])

    return vector(array, types.intp, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)
def store_first(typingctx: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """Store the first ``count`` lanes to the flat C-order ``array`` from ``index`` on."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = args[2].type
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], to)
        align = ir.Constant(_INT32, array.dtype.bitwidth // 8)
        mask = _lane_mask(builder, args[3], to.count)
        _masked(builder, "store", ir.VoidType(), to, [args[2], pointer, align, mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen


@intrinsic(prefer_literal=True)
def store_past_cache(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a vector without fetching its cache line; ``index`` must be aligned to the vector."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = args[2].type
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], to)
        instruction = builder.store(args[2], pointer, align=to.count * array.dtype.bitwidth // 8)
        hint = builder.module.add_metadata([ir.Constant(_INT32, 1)])
        instruction.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic(prefer_literal=True)
def load_bytes(typingctx: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Load ``lanes`` bytes of an int8 or uint8 array as 32-bit integers."""
    vector = Vector(types.int32, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        narrow = ir.VectorType(ir.IntType(8), lanes.literal_value)
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], narrow)
        widen = builder.sext if array.dtype.signed else builder.zext
        return widen(builder.load(pointer, align=1), context.get_value_type(sig.return_type))

    return vector(array, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an element, which may be beyond the end of ``array``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte = ir.IntType(8)
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], byte)
        function_type = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), *[_INT32] * 3])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), function_type)
        read, keep, data = (ir.Constant(_INT32, n) for n in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic(prefer_literal=True)
def splat(typingctx: Any, value: Any, lanes: Any) -> Any:
    """Return a vector whose lanes all hold ``value``."""
    vector = Vector(value, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, args[0], lanes.literal_value)

    return vector(value, lanes), codegen


@intrinsic(prefer_literal=True)
def keep_first(typingctx: Any, value: Any, count: Any, fill: Any) -> Any:
    """Return ``value`` with all but its first ``count`` lanes replaced by the scalar ``fill``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = args[0].type.count
        fills = _splat(builder, args[2], lanes)
        return builder.select(_lane_mask(builder, args[1], lanes), args[0], fills)

    return value(value, types.intp, value.element), codegen


@intrinsic(prefer_literal=True)
def add(typingctx: Any, a: Any, b: Any) -> Any:
    """Return ``a + b``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return a(a, a), codegen


@intrinsic(prefer_literal=True)
def subtract(typingctx: Any, a: Any, b: Any) -> Any:
    """Return ``a - b``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fsub(*args)

    return a(a, a), codegen


@intrinsic(prefer_literal=True)
def multiply(typingctx: Any, a: Any, b: Any) -> Any:
    """Return ``a * b``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return a(a, a), codegen


@intrinsic(prefer_literal=True)
def maximum(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the larger of ``a`` and ``b`` in every lane; ``b`` if ``a`` is NaN."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _larger(builder, *args)

    return a(a, a), codegen


@intrinsic(prefer_literal=True)
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, fused if the machine can."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _overloaded(builder, "fmuladd", args[0].type, list(args))

    return a(a, b, c), codegen


@intrinsic(prefer_literal=True)
def to_float(typingctx: Any, value: Any) -> Any:
    """Convert 32-bit integers to single precision."""
    vector = Vector(types.float32, value.lanes)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sitofp(args[0], context.get_value_type(sig.return_type))

    return vector(value), codegen


@intrinsic(prefer_literal=True)
def low_nibble(typingctx: Any, value: Any) -> Any:
    """Return bits 0 to 3 of every lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.and_(args[0], _constant(args[0].type, 15))

    return value(value), codegen


@intrinsic(prefer_literal=True)
def high_nibble(typingctx: Any, value: Any) -> Any:
    """Return bits 4 and above of every lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.lshr(args[0], _constant(args[0].type, 4))

    return value(value), codegen


# exp(x) = 2^n · exp(r) with n = round(x / ln 2) and r = x − n·ln 2 in [−ln 2 / 2, ln 2 / 2] (Cody
# and Waite, Software Manual for the Elementary Functions, 1980: ln 2 is subtracted in two parts).
_LOG2_E = 1.44269504088896341
_LN_2 = (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c61p-29"))
# exp(r) to a relative error of 9e-8: a minimax polynomial whose constant term is 1.
_EXP = (
    1.0,
    0.99999970197677,
    0.49999147653580,
    0.16667638719082,
    0.04189816117287,
    0.00829027220607,
)


@intrinsic(prefer_literal=True)
def exp_exponent(typingctx: Any, value: Any) -> Any:
    """Return the whole n for which ``exp(value) / 2**n`` is nearest to 1."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        scaled = builder.fmul(args[0], _constant(args[0].type, _LOG2_E))
        return _overloaded(builder, "rint", args[0].type, [scaled])

    return value(value), codegen


@intrinsic(prefer_literal=True)
def exp_mantissa(typingctx: Any, value: Any, exponent: Any) -> Any:
    """Return ``exp(value) / 2**exponent`` for the exponent of `exp_exponent`.

    The relative error is below 2e-7 in single precision if ``|value|`` is below 1e4.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[0].type
        rest = args[0]
        for part in _LN_2:
            rest = _overloaded(
                builder, "fmuladd", vector, [args[1], _constant(vector, -part), rest]
            )
        result = _constant(vector, _EXP[-1])
        for coefficient in reversed(_EXP[:-1]):
            result = _overloaded(
                builder, "fmuladd", vector, [result, rest, _constant(vector, coefficient)]
            )
        return result

    return value(value, value), codegen


@intrinsic(prefer_literal=True)
def power_of_two(typingctx: Any, value: Any) -> Any:
    """Return ``2**value`` of whole numbers up to 127 in single precision; 0 from -127 down."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[0].type
        exponent = _larger(builder, args[0], _constant(vector, -127.0))
        # the bits of the result, as a number: (exponent + 127) · 2^23, exact in single precision
        shift = _constant(vector, 2.0**23)
        bits = _overloaded(
            builder, "fmuladd", vector, [exponent, shift, _constant(vector, 127.0 * 2**23)]
        )
        whole = builder.fptosi(bits, ir.VectorType(_INT32, vector.count))
        return builder.bitcast(whole, vector)

    return value(value), codegen


@intrinsic(prefer_literal=True)
def total(typingctx: Any, value: Any) -> Any:
    """Return the sum of the lanes, by halving."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduce_halves(builder, args[0], builder.fadd)

    return value.element(value), codegen


@intrinsic(prefer_literal=True)
def largest(typingctx: Any, value: Any) -> Any:
    """Return the largest lane."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduce_halves(builder, args[0], lambda a, b: _larger(builder, a, b))

    return value.element(value), codegen

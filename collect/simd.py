"""SIMD vectors for Numba kernels: a handful of operations on ``<lanes x float>`` values.

Numba leaves vectorisation to LLVM's guesses; a tuned kernel wants to say which vector width it
means. These intrinsics add one first-class vector type to Numba, held in a register, so that a
kernel's inner loop reads like the instructions it becomes::

    acc = fma(load(a, i, LANES), load(b, i, LANES), acc)

Widths above the machine's are split by LLVM, so every width runs everywhere.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import register_default
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic


class Vector(types.Type):
    """Numba's type of ``lanes`` numbers of scalar type ``element``."""

    def __init__(self, element: types.Type, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"Vector({element}, {lanes})")


@register_default(Vector)
class VectorModel(PrimitiveModel):  # type: ignore[misc]
    """Held as an LLVM vector, that is in a register."""

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


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def load(typingctx: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Load ``lanes`` consecutive elements of the flat C-order ``array`` from ``index`` on."""
    vector = Vector(array.dtype, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = context.get_value_type(sig.return_type)
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], to)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a vector to the flat C-order ``array`` from ``index`` on."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], args[2].type)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def splat(typingctx: Any, value: Any, lanes: Any) -> Any:
    """Return a vector whose lanes all hold ``value``."""
    vector = Vector(value, lanes.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = context.get_value_type(sig.return_type)
        undefined = ir.Constant(to, ir.Undefined)
        first = builder.insert_element(undefined, args[0], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), to.count), None)
        return builder.shuffle_vector(first, undefined, zeros)

    return vector(value, lanes), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, fused where the machine can."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _overloaded(builder, "fmuladd", args[0].type, list(args))

    return a(a, b, c), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def total(typingctx: Any, value: Any) -> Any:
    """Return the sum of the lanes, by halving."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector, count = args[0], args[0].type.count
        while count > 1:
            count //= 2
            half = ir.VectorType(ir.IntType(32), count)
            low = ir.Constant(half, list(range(count)))
            high = ir.Constant(half, list(range(count, 2 * count)))
            undefined = ir.Constant(vector.type, ir.Undefined)
            vector = builder.fadd(
                builder.shuffle_vector(vector, undefined, low),
                builder.shuffle_vector(vector, undefined, high),
            )
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return value.element(value), codegen

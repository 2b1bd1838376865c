"""Sends a cache line back and forth between two cores (Numba)."""

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from foretune.collect.kernels.numba_codegen import compile_function


@intrinsic
def load(typingctx: Any, array: Any) -> Any:
    """Load the first element atomically."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "seq_cst", 8)

    return types.int64(array), codegen


@intrinsic
def store(typingctx: Any, array: Any, value: Any) -> Any:
    """Store the first element atomically."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        builder.store_atomic(args[1], data, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


_BOUNCE = """
def bounce(ball, mine, times):
    for _ in range(times):
        while load(ball) != mine:
            pass
        store(ball, 1 - mine)
"""
bounce = compile_function(_BOUNCE, "bounce", load=load, store=store)
"""Waits for ``mine`` (0 or 1) in ``ball`` and returns the other number, ``times`` times."""

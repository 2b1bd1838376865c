"""Parameters of a Triton kernel: what Triton compiles code for."""

from typing import Any

from triton.language import constexpr
from triton.runtime.jit import JITFunction


def undecorated_kernel(fn: Any) -> Any:
    """Return the kernel below its decorators: Triton's `JITFunction`, or the interpreter's."""
    while not isinstance(fn, JITFunction) and hasattr(fn, "fn") and hasattr(fn.fn, "arg_names"):
        fn = fn.fn
    return fn


def triton_parameters(function: Any) -> dict[str, Any]:
    """Return Triton's description of each argument, by name; none in the interpreter."""
    return {p.name: p for p in getattr(function, "params", ())}


def is_constant(parameter: Any) -> bool:
    """Whether an argument is a constant of the compiled code."""
    return bool(getattr(parameter, "is_constexpr", False))


def specializes(parameter: Any) -> bool:
    """Whether Triton specializes code on an argument's value."""
    return not getattr(parameter, "do_not_specialize", False)


def aligns(parameter: Any) -> bool:
    """Whether Triton specializes code on divisibility by 16."""
    ignores_alignment = getattr(parameter, "do_not_specialize_on_alignment", False)
    return specializes(parameter) and not ignores_alignment


def is_descriptor(value: Any) -> bool:
    """Whether ``value`` is a tensor descriptor of Triton's or Gluon's."""
    return hasattr(value, "base") and hasattr(value, "block_shape")


def plain_argument(value: Any) -> Any:
    """Return what Triton sees of an argument.

    That is the tensor below a descriptor, the number of a NumPy scalar (which has a dtype, too) and
    of a ``tl.constexpr``; other values are unchanged.
    """
    if isinstance(value, constexpr):
        return value.value
    is_numpy_scalar = getattr(value, "ndim", None) == 0 and not hasattr(value, "data_ptr")
    if is_numpy_scalar and hasattr(value, "item"):
        return value.item()
    return underlying_tensor(value)


def underlying_tensor(value: Any) -> Any:
    """Return the tensor below a descriptor; other values unchanged."""
    return value.base if is_descriptor(value) else value

"""The operands of a product of tiles: tensors among a call's arguments."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

DATA_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "uint8": 8}
"""Bits per element of operands; longer integers are indices. All types of float8 have 8."""
MIN_HEAD_WIDTH = 8
MAX_HEAD_WIDTH = 512
"""Bounds of an attention head's width."""
DEFAULT_HEAD_WIDTH = 64.0
"""Width of an attention head, if unknown."""
MAX_ALIGNMENT = 16
"""Bytes of the longest load; a larger alignment does not matter."""


def find_operands(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the tensors of numbers, including those of descriptors, in order."""
    values = [getattr(value, "base", value) for value in arguments.values()]
    tensors = [v for v in values if hasattr(v, "dtype") and hasattr(v, "stride")]
    return [tensor for tensor in tensors if bits_of(tensor)]


def multiplied(operands: Sequence[Any], depth: float) -> tuple[Any, Any]:
    """Return the two operands of a product, or twice the only one.

    They are the first two matrices with an axis of the product's depth: a result or a bias may come
    before. If its depth is not known (0), or they have none, they are the first two tensors.
    """
    matrices = [tensor for tensor in operands if len(tensor.shape) > 1]
    with_depth = [tensor for tensor in matrices if depth in tensor.shape]
    candidates = with_depth if len(with_depth) > 1 else operands
    return candidates[0], candidates[min(1, len(candidates) - 1)]


def bits_of(tensor: Any) -> float:
    """Return the bits per element; 0 for indices."""
    name = str(tensor.dtype).removeprefix("torch.")
    return 8.0 if name.startswith("float8") else float(DATA_BITS.get(name, 0))


def bytes_of(tensor: Any) -> float:
    """Return the bytes of all elements; those that a stride of 0 repeats count once."""
    axes = zip(tensor.shape, tensor.stride(), strict=False)  # a description may lack strides
    repeats = math.prod(max(size, 1) for size, stride in axes if stride == 0)
    return math.prod(tensor.shape) / repeats * bits_of(tensor) / 8


def is_exact(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments turn off the rounding of 32-bit products to TF32."""
    for name, value in arguments.items():
        about_rounding = re.search("TF32|PRECISION", name, re.IGNORECASE)
        if about_rounding and (value is False or value == 0 or value == "ieee"):
            return True
    return False


def is_transposed(tensor: Any) -> bool:
    """Whether another axis than the last is contiguous."""
    *outer_strides, last_stride = tensor.stride() or (1,)
    return last_stride != 1 and 1 in outer_strides


def is_contiguous_along(tensor: Any, inner_size: float, default_axis: int) -> bool:
    """Whether an operand is contiguous along the inner axis of its product.

    That is the axis, of the last two, with the inner size; if both or none have it, the default.
    """
    sizes = list(tensor.shape)[-2:]
    strides = list(tensor.stride())[-2:]
    if min(len(sizes), len(strides)) < 2:
        return True
    with_size = [axis for axis, size in enumerate(sizes) if size == inner_size]
    axis = with_size[0] if len(with_size) == 1 else default_axis
    return bool(strides[axis] == 1)


def log_alignment(tensor: Any) -> float:
    """Return log2 of the alignment of an operand's rows, in bytes."""
    strides = [stride for stride in tensor.stride() if stride > 1] or [16]
    row_bytes = int(min(strides) * bits_of(tensor) / 8)
    if not row_bytes:
        return 0.0
    largest_power_of_two = row_bytes & -row_bytes
    return math.log2(min(largest_power_of_two, MAX_ALIGNMENT))


def head_width(arguments: Mapping[str, Any], tensor: Any) -> float:
    """Return the width of an attention head: an argument such as HEAD_DIM, else the last axis."""
    for name, value in arguments.items():
        is_width = type(value) is int and MIN_HEAD_WIDTH <= value <= MAX_HEAD_WIDTH
        if is_width and "DIM" in name.upper():
            return float(value)
    shape = tensor.shape
    if len(shape) > 1 and shape[-1] <= MAX_HEAD_WIDTH:
        return float(shape[-1])
    return DEFAULT_HEAD_WIDTH

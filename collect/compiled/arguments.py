"""Kernel arguments without memory, as the compiler needs them.

Triton specializes on a pointer's type and alignment and on an integer's divisibility, never on a
tensor's elements. So a worker process gets a tensor's metadata only.
"""

import copy
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from foretune.errors import UnknownName, UsageError
from foretune.values import parse_value

DTYPES: dict[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "i1": "bool",
}
"""Element types by the short names that users type -> torch's names."""
ANY_INTEGER: dict[str, int] = {"i32": 2**20, "i64": 2**40}
"""Default for integers given by type only: a multiple of 16, like most sizes."""
NO_SIZES: Mapping[str, int] = MappingProxyType({})
ALIGNMENT = 16
"""Alignment in bytes that Triton specializes on, and that torch's tensors have."""

_SHAPE = re.compile(r"(?P<element>\w+)\[(?P<sizes>[^\]]+)\]")


@dataclass(frozen=True)
class ElementType:
    """An element type that prints like torch's, for processes without torch."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"


@cache
def _element_type(name: str, torch_is_loaded: bool) -> Any:
    dtype = getattr(sys.modules["torch"], name, None) if torch_is_loaded else None
    return ElementType(name) if dtype is None else dtype


@dataclass(frozen=True)
class Tensor:
    """The metadata of a tensor that a compiler needs.

    ``element`` is torch's name of the type without ``torch.``, ``strides`` are in elements,
    ``address`` is the start address modulo 16, ``bytes`` the size of the storage.
    """

    element: str
    shape: tuple[int, ...] = (1,)
    strides: tuple[int, ...] = (1,)
    address: int = 0
    bytes: int = 0

    @property
    def dtype(self) -> Any:
        """Torch's element type, or an equally printed one if torch is not loaded."""
        return _element_type(self.element, "torch" in sys.modules)

    def data_ptr(self) -> int:
        """Return an address with the alignment of the real address."""
        return self.address

    def ptr_range(self) -> int:
        """Return the size of the storage, which AMD's compiler needs."""
        return self.bytes

    def stride(self, axis: int | None = None) -> Any:
        """Return all strides, or the stride of one axis."""
        return self.strides if axis is None else self.strides[axis]

    def size(self, axis: int | None = None) -> Any:
        """Return the shape, or the size of one axis."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


def describe(value: Any) -> Any:
    """Return a kernel argument in a form for another process: tensors become `Tensor`.

    It is a tensor or tensor descriptor; a torch dtype, which stands for a pointer aligned to 16
    bytes; a number, None, a tuple of those, or anything that can be pickled.
    """
    if isinstance(value, Tensor):
        return value
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return Tensor(str(value).removeprefix("torch."))
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return _describe_tensor(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(describe, value))
    is_tensor_descriptor = hasattr(value, "base") and hasattr(value, "block_shape")
    if is_tensor_descriptor:
        described = copy.copy(value)
        described.base = describe(value.base)
        return described
    return value


def _describe_tensor(value: Any) -> Tensor:
    if hasattr(value, "untyped_storage"):
        storage_bytes = value.untyped_storage().size()
    elif hasattr(value, "ptr_range"):
        storage_bytes = value.ptr_range()
    else:
        storage_bytes = 0
    return Tensor(
        element=str(value.dtype).removeprefix("torch."),
        shape=tuple(value.shape),
        strides=tuple(value.stride()),
        address=value.data_ptr() % ALIGNMENT,
        bytes=int(storage_bytes),
    )


def parse_argument(text: str, sizes: Mapping[str, int] = NO_SIZES) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``; raise UsageError if the text has another form.

    Values: ``fp16*`` is a pointer aligned to 16 bytes, ``fp16*2`` one aligned to 2 bytes only;
    ``fp16[M,4096]`` is a tensor in row-major order, whose sizes may be names of ``sizes``;
    ``4096``, ``M``, ``0.5``, ``true``, ``none``; ``i32`` is an integer that is a multiple of 16.
    """
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise UsageError(f"argument {text!r}: give NAME=VALUE, like x=fp16* or n=4096")
    if value in sizes:
        return name, sizes[value]
    if shape := _SHAPE.fullmatch(value):
        return name, _tensor(text, shape["element"], shape["sizes"].split(","), sizes)
    if value.endswith("]"):
        raise UsageError(f"argument {text!r}: a tensor is {name}=fp16[4096,4096]")
    element, star, alignment = value.partition("*")
    is_pointer = bool(star)
    if is_pointer:
        return name, _pointer(text, element, alignment)
    if value in ANY_INTEGER:
        return name, ANY_INTEGER[value]
    if value in DTYPES or value in DTYPES.values():
        raise UsageError(
            f"argument {text!r}: a pointer is {name}={value}*, a number {name}=4096 or {name}=0.5, "
            f"and any integer {name}=i32; a compile-time text belongs in --config"
        )
    if value.lower() == "none":
        return name, None
    return name, parse_value(value)


def _tensor(text: str, element: str, shape_text: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    """Return a contiguous tensor, last axis first, with the shape of an argument's text."""
    if element not in DTYPES and element not in DTYPES.values():
        raise UnknownName("element type", element, DTYPES)
    shape = []
    for size in map(str.strip, shape_text):
        number = sizes.get(size, int(size) if size.isdecimal() else 0)
        if number < 1:
            raise UsageError(f"argument {text!r}: {size!r} is no size; give it with --problem")
        shape.append(number)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return Tensor(DTYPES.get(element, element), tuple(shape), tuple(strides))


def _pointer(text: str, element: str, alignment: str) -> Tensor:
    """Return the pointer of an argument's text, whose element type and alignment are given."""
    if element not in DTYPES and element not in DTYPES.values():
        raise UnknownName("element type", element, DTYPES)
    if alignment and alignment not in ("1", "2", "4", "8", "16"):
        raise UsageError(f"argument {text!r}: an alignment is 1, 2, 4, 8 or 16 bytes")
    aligned_to = int(alignment or ALIGNMENT)
    return Tensor(DTYPES.get(element, element), address=aligned_to % ALIGNMENT)

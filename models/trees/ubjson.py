"""Reads UBJSON, the binary JSON of XGBoost's models."""

import re
from collections.abc import Sequence
from struct import Struct, error
from typing import Any

import numpy as np

NUMBERS = {
    mark: np.dtype(name)
    for mark, name in zip(
        b"iUIlLdD", (">i1", ">u1", ">i2", ">i4", ">i8", ">f4", ">f8"), strict=True
    )
}
"""Type markers of numbers -> their dtype."""
CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
TEXT, LIST, MAPPING, END, LIST_END, KIND, COUNT, INT64 = b"S[{}]$#L"
_int64 = Struct(">q").unpack_from


def read_ubjson(data: bytes) -> Any:
    """Return a document as Python values; typed number arrays become NumPy arrays.

    Raises ValueError if it is not UBJSON, or incomplete.
    """
    reader = _Ubjson(data)
    try:
        value = reader.value()
    except (LookupError, RecursionError, TypeError, UnicodeDecodeError, error) as e:
        raise ValueError(f"no UBJSON near byte {reader.at}") from e
    if reader.at != len(data):
        raise ValueError(f"UBJSON ends at byte {reader.at} of {len(data)}")
    return value


def zero_fields(data: bytes, names: Sequence[str]) -> bytes:
    """Return the document with all float32 arrays of these names set to zero."""
    each = (re.escape(Struct(">bq").pack(INT64, len(n)) + n.encode()) for n in names)
    found = bytearray(data)
    for head in re.finditer(b"(?:%s)%s(.{8})" % (b"|".join(each), rb"\[\$d#L"), data, re.DOTALL):
        size = 4 * _int64(head[1])[0]
        found[head.end() : head.end() + size] = bytes(size)
    return bytes(found)


class _Ubjson:
    """UBJSON (ubjson.org), the binary JSON of XGBoost's models, read from byte ``at`` on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def value(self, kind: int | None = None) -> Any:
        """Return the next value, of the given kind or of the kind in its marker."""
        if kind is None:
            kind = self.data[self.at]
            self.at += 1
        if kind == LIST:
            return self.array()
        if kind == TEXT:
            return self.text()
        if kind == MAPPING:
            return self.mapping()
        return CONSTANTS[kind] if kind in CONSTANTS else self.numbers(kind, 1)[0].item()

    def count(self) -> int:
        if self.data[self.at] == INT64:  # XGBoost writes all counts so
            self.at += 9
            number: int = _int64(self.data, self.at - 8)[0]
        else:
            number = self.value()
        if not 0 <= number <= len(self.data) - self.at:
            raise IndexError(number)
        return number

    def text(self) -> str:
        count = self.count()
        self.at += count
        return self.data[self.at - count : self.at].decode()

    def numbers(self, kind: int, count: int) -> np.ndarray:
        start, dtype = self.at, NUMBERS[kind]
        self.at += count * dtype.itemsize
        if self.at > len(self.data):
            raise IndexError(count)
        return np.frombuffer(self.data, dtype, count, start)

    def array(self) -> Any:
        kind = None
        if self.data[self.at] == KIND:
            kind = self.data[self.at + 1]
            self.at += 2
        if self.data[self.at] == COUNT:
            self.at += 1
            count = self.count()
            return self.numbers(kind, count) if kind in NUMBERS else self.values(count, kind)
        values = []
        while self.data[self.at] != LIST_END:
            values.append(self.value())
        self.at += 1
        return values

    def values(self, count: int, kind: int | None) -> list[Any]:
        return [self.value(kind) for _ in range(count)]

    def mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at] != END:
            name = self.text()
            if name in found:  # duplicates are ambiguous
                raise KeyError(name)
            found[name] = self.value()
        self.at += 1
        return found

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
"""Type marker of a number -> its dtype."""
CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
TEXT, LIST, MAPPING, END, KIND, COUNT, INT64 = b"S[{}$#L"
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
    """UBJSON (ubjson.org) as XGBoost writes it, read from byte ``at`` on.

    Lists have a count, and counts have 64 bits.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def next_byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def value(self) -> Any:
        kind = self.next_byte()
        if kind == LIST:
            return self.array()
        if kind == TEXT:
            return self.text()
        if kind == MAPPING:
            return self.mapping()
        return CONSTANTS[kind] if kind in CONSTANTS else self.numbers(kind, 1)[0].item()

    def count(self) -> int:
        kind, number = self.next_byte(), _int64(self.data, self.at)[0]
        self.at += 8
        if kind != INT64 or not 0 <= number <= len(self.data) - self.at:
            raise IndexError(number)
        return int(number)

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
        mark, kind = self.next_byte(), None
        if mark == KIND:
            kind, mark = self.next_byte(), self.next_byte()
        if mark != COUNT:
            raise KeyError(mark)
        count = self.count()
        return [self.value() for _ in range(count)] if kind is None else self.numbers(kind, count)

    def mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at] != END:
            name = self.text()
            if name in found:  # duplicates are ambiguous
                raise KeyError(name)
            found[name] = self.value()
        self.at += 1
        return found

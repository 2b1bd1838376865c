"""Reads the sizes in a Parquet file's footer.

Arrow knows them, too, but ends the process where statistics beside them are damaged.
"""

from collections.abc import Iterator
from pathlib import Path

MAGIC = b"PAR1"
_BOOLEANS, _INTEGERS, _BYTE, _DOUBLE, _BINARY = (1, 2), (4, 5, 6), 3, 7, 8
_LISTS, _MAP, _STRUCT = (9, 10), 11, 12


def column_sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the number of values and the uncompressed bytes of each column in each row group.

    Raises:
        ValueError: there is no footer, or it is damaged.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(end - 8, 0))
        tail = file.read()
        size = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or size > end - 8:
            raise ValueError("it has no footer of Parquet")
        file.seek(end - 8 - size)
        footer = _Thrift(file.read(size))
    try:
        yield from _sizes(footer)
    except (IndexError, RecursionError) as e:
        raise ValueError("its footer is damaged") from e


def _sizes(footer: "_Thrift") -> Iterator[tuple[int, int]]:
    for _ in footer.items(4):  # row groups
        for _ in footer.items(1):  # columns
            found = {}
            for chunk_field, kind in footer.fields():
                if chunk_field != 3 or kind != _STRUCT:  # the column's metadata
                    footer.skip(kind)
                    continue
                for field, inner in footer.fields():
                    if field in (5, 6) and inner in _INTEGERS:
                        found[field] = footer.integer()
                    else:
                        footer.skip(inner)
            yield found.get(5, 0), found.get(6, 0)


class _Thrift:
    """Data in Thrift's compact protocol, read from byte ``at`` on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise IndexError(shift)

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; the caller reads or skips it."""
        number = 0
        while (head := self.data[self.at]) != 0:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15
        self.at += 1

    def items(self, wanted: int) -> Iterator[None]:
        """Yield once per item of the lists of structs in a struct's field; skip other fields."""
        for number, kind in self.fields():
            if number != wanted or kind not in _LISTS:
                self.skip(kind)
                continue
            count, item = self.head()
            for _ in range(count):
                if item == _STRUCT:
                    yield
                else:
                    self.skip(item, in_list=True)

    def head(self) -> tuple[int, int]:
        """Return the number and the type of a list's items."""
        head = self.data[self.at]
        self.at += 1
        count = self.varint() if head >> 4 == 15 else head >> 4
        if count > len(self.data) - self.at:  # each takes a byte at least
            raise IndexError(count)
        return count, head & 15

    def skip(self, kind: int, in_list: bool = False) -> None:
        if kind in _BOOLEANS:
            self.at += in_list  # in a struct, the type is the value
        elif kind in _INTEGERS:
            self.varint()
        elif kind == _BYTE:
            self.at += 1
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            size = self.varint()
            self.at += size
        elif kind in _LISTS:
            count, item = self.head()
            for _ in range(count):
                self.skip(item, in_list=True)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        else:  # Parquet has no maps
            raise IndexError(kind)

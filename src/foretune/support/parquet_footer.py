"""Reads the sizes of all columns from a Parquet file's footer.

Arrow can read them, too, but a damaged statistic beside them ends the whole process: an exception
of C++ that Python cannot catch (pyarrow 25.0.1, on 1 of the first 548 footers that
`spoiling.spoil_bytes` damaged). A table of another program must not end a campaign, so the
footer's few fields are read here. It is written in Thrift's compact protocol.
"""

from collections.abc import Iterator
from pathlib import Path

MAGIC = b"PAR1"
"""The last four bytes of a Parquet file; the four before them are the footer's length."""
VALUES = (4, 1, 3, 5)
BYTES = (4, 1, 3, 6)
"""Fields of the footer: row groups, their columns, the metadata of a column, and its sizes."""
_BOOLEANS = (1, 2)
_INTEGERS = (4, 5, 6)
_BINARY = 8
_LISTS = (9, 10)
_STRUCT = 12
_BYTES_OF = {3: 1, 7: 8}
"""Types of fixed length: a byte and a floating-point number."""


def decoded_size(path: Path) -> tuple[int, int]:
    """Return the number of values and the uncompressed bytes of all columns.

    Raises ValueError if there is no footer, or it is damaged.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(end - 8, 0))
        tail = file.read()
        size = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or size > end - 8:
            raise ValueError("it has no Parquet footer")
        file.seek(end - 8 - size)
        footer = _Thrift(file.read(size))
    found = {VALUES: 0, BYTES: 0}
    try:
        for field, value in footer.integers(_STRUCT):
            if field in found:
                found[field] += max(value, 0)
    except (IndexError, RecursionError) as e:
        raise ValueError("its footer is damaged") from e
    return found[VALUES], found[BYTES]


class _Thrift:
    """Data in Thrift's compact protocol, read from byte ``at`` on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

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

    def integers(
        self, kind: int, path: tuple[int, ...] = (), in_list: bool = False
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield every integer of a value, with the numbers of the fields that lead to it."""
        if kind in _BOOLEANS:
            self.at += in_list  # in a struct, the type is the value
        elif kind in _INTEGERS:
            yield path, self.integer()
        elif kind in _BYTES_OF:
            self.at += _BYTES_OF[kind]
        elif kind == _BINARY:
            size = self.varint()
            self.at += size
        elif kind in _LISTS:
            count, item = self.head()
            for _ in range(count):
                yield from self.integers(item, path, in_list=True)
        elif kind == _STRUCT:
            number = 0
            while (head := self.data[self.at]) != 0:
                self.at += 1
                number = number + (head >> 4) if head >> 4 else self.integer()
                yield from self.integers(head & 15, (*path, number))
            self.at += 1
        else:  # Parquet has no maps
            raise IndexError(kind)

    def head(self) -> tuple[int, int]:
        """Return the number and the type of a list's items."""
        head = self.data[self.at]
        self.at += 1
        count = self.varint() if head >> 4 == 15 else head >> 4
        if count > len(self.data) - self.at:  # each takes a byte at least
            raise IndexError(count)
        return count, head & 15

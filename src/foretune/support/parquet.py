"""Reads Parquet tables of unknown origin within limits.

A column that repeats a value takes almost no space, so a small file may decode to a table that
fills the memory. Limits apply to the decoded table: its cells, columns and characters.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foretune.support.files import StrPath, require_cells, require_regular_file, require_size


class ParquetFile:
    """An open table.

    Raises OSError, ValueError if the file is not Parquet, too large, or has columns of other types
    than numbers, texts, times and lists of these.
    """

    def __init__(self, path: StrPath, dictionaries: bool = False) -> None:
        self._path = require_regular_file(path)
        self._size = self._path.stat().st_size
        self.metadata = pq.read_metadata(path)
        self.schema = pq.read_schema(path)
        self._check()
        texts = [field.name for field in self.schema if _is_text(field.type)]
        self._texts = [] if dictionaries else texts
        self._file = pq.ParquetFile(self._path, read_dictionary=texts)

    @property
    def row_group_sizes(self) -> list[int]:
        """Number of rows of each row group."""
        return [self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)]

    def read(self) -> pa.Table:
        """Return the table."""
        return self._decode(self._file.read())

    def read_row_group(self, number: int, columns: list[str]) -> pa.Table:
        """Return some columns of a row group."""
        return self._decode(self._file.read_row_group(number, columns))

    def batches(self, rows: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows in pieces, optionally with only some columns."""
        for batch in self._file.iter_batches(rows, columns=columns):
            yield self._decode(pa.Table.from_batches([batch]))

    def _check(self) -> None:
        for field in self.schema:
            if not _is_plain(field.type):
                raise ValueError(f"column {field.name!r} holds {field.type}: leave it out")
        cells, size = decoded_size(self._path)  # cells in lists, too
        require_size(size, self._size)
        columns = self.metadata.num_columns
        require_cells(max(cells, self.metadata.num_rows * columns), columns, self._size)

    def _decode(self, table: pa.Table) -> pa.Table:
        """Return the table with plain texts; raise ValueError if they are too large."""
        letters = 0
        for name in set(self._texts).intersection(table.schema.names):
            for part in table[name].chunks:
                lengths = pc.binary_length(part.dictionary).cast(pa.int64())
                letters += pc.sum(lengths.take(part.indices)).as_py() or 0
        require_size(letters, self._size)
        types = [
            pa.field(f.name, self.schema.field(f.name).type) if f.name in self._texts else f
            for f in table.schema
        ]
        return table.cast(pa.schema(types, table.schema.metadata))


def read_parquet(path: StrPath, dictionaries: bool = False) -> pa.Table:
    """Return the table in a file; see `ParquetFile`."""
    return ParquetFile(path, dictionaries).read()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        _is_text(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or types.is_null(kind)
    )


MAGIC = b"PAR1"
VALUES, BYTES = (4, 1, 3, 5), (4, 1, 3, 6)
"""Fields of the footer: row groups, their columns, the metadata of a column, and its sizes."""
_BOOLEANS, _INTEGERS, _BINARY, _LISTS, _STRUCT = (1, 2), (4, 5, 6), 8, (9, 10), 12
_BYTES_OF = {3: 1, 7: 8}  # bytes of a byte and of a floating-point number


def decoded_size(path: Path) -> tuple[int, int]:
    """Return the number of values and the uncompressed bytes of all columns.

    Arrow can read them, too, but crashes if the statistics next to them are damaged. Raises
    ValueError if there is no footer, or it is damaged.
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

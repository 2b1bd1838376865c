"""Reads Parquet tables of unknown origin within limits.

A column that repeats a value takes almost no space, so a small file may decode to a table that
fills the memory. Limits apply to the decoded table: its cells, columns and characters.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foretune.files import StrPath, require_cells, require_regular_file, require_size


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
        sizes = list(column_sizes(self._path))
        require_size(sum(max(size, 0) for _, size in sizes), self._size)
        cells = sum(max(values, 0) for values, _ in sizes)  # those in lists, too
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
        _is_text(kind) or types.is_boolean(kind) or types.is_integer(kind)
        or types.is_floating(kind) or types.is_decimal(kind) or types.is_temporal(kind)
        or types.is_null(kind)
    )  # fmt: skip


MAGIC = b"PAR1"
_BOOLEANS, _INTEGERS, _BYTE, _DOUBLE, _BINARY = (1, 2), (4, 5, 6), 3, 7, 8
_LISTS, _MAP, _STRUCT = (9, 10), 11, 12


def column_sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the number of values and the uncompressed bytes of each column in each row group.

    Arrow can read them, too, but crashes if the statistics next to them are damaged.

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

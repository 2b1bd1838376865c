"""Reads Parquet tables of unknown origin within limits.

A column that repeats a value costs almost nothing in a file, so that a small file may hold a table
that fills the memory. Limits are on what is decoded: cells, columns, and the letters of texts.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foretune.files import StrPath, require_cells, require_regular_file, require_size
from foretune.parquet_footer import column_sizes


class ParquetFile:
    """An open table.

    Raises:
        OSError, ValueError: it is none, too large, or holds columns that are neither numbers,
            texts, times nor lists of them.
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
        """Return the table with plain texts, unless their letters are too many."""
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

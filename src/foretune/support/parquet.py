"""Reads Parquet tables of unknown origin within limits.

A column that repeats a value takes almost no space, so a small file may decode to a table that
fills the memory. Limits apply to the decoded table: its cells, columns and characters.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foretune.support.files import StrPath, require_cells, require_regular_file, require_size
from foretune.support.parquet_footer import decoded_size


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
        n_characters = 0
        for name in set(self._texts).intersection(table.schema.names):
            for part in table[name].chunks:
                lengths = pc.binary_length(part.dictionary).cast(pa.int64())
                n_characters += pc.sum(lengths.take(part.indices)).as_py() or 0
        require_size(n_characters, self._size)

        fields = [
            pa.field(field.name, self.schema.field(field.name).type)
            if field.name in self._texts
            else field
            for field in table.schema
        ]
        return table.cast(pa.schema(fields, table.schema.metadata))


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

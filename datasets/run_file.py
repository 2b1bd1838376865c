"""Reads and extends a run table's Parquet file in pieces, to bound memory.

A row's key is the sum, modulo 2^64, of a hash of each name with its value. Column order and empty
cells do not change it. For a table, each distinct value of a column is hashed once.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from foretune.datasets.runs import (
    ROW_GROUP_SIZE,
    file_metadata,
    from_arrow,
    is_empty,
    open_runs,
    ordered_columns,
    to_arrow,
)
from foretune.datasets.schema import PLAIN_GROUPS, validate
from foretune.errors import RunTableError
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import atomic_write, parse_json, translate_read_errors
from foretune.values import canonical_value

CACHED_ROW_GROUPS = 4
"""Row groups that stay in memory."""
RowIdentity = tuple[str, str, Problem, Configuration]
"""What was run: kernel, device, problem, configuration."""


class RunFile:
    """One version of the file; `extend` writes the next version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        opened = open_runs(path)
        self._file = opened.file
        self.mixed = opened.mixed
        self.journal_digest = opened.journal_digest
        self.schema: pa.Schema = self._file.schema
        self._ends = np.cumsum(self._file.row_group_sizes)
        columns = [c for c in self.schema.names if not c.startswith("device.")]
        self._row_group = lru_cache(CACHED_ROW_GROUPS)(
            lambda group: self._file.read_row_group(group, columns)
        )

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def keys(self) -> np.ndarray:
        """Validate every row and return its key; raises RunTableError if a row is impossible."""
        keys = [np.zeros(0, dtype=np.uint64)]
        # Lists of numbers, the samples, are large; their type says that they are valid.
        checked = [field.name for field in self.schema if not _is_list_of_numbers(field)]
        with translate_read_errors(self.path, RunTableError, "is damaged: {}"):
            first_row = 0
            for piece in self.batches(checked):
                validate(from_arrow(piece, self.mixed), str(self.path), first_row)
                first_row += len(piece)
                keys.append(_row_keys(piece, self.mixed))
        return np.concatenate(keys)

    def kernels(self) -> set[str]:
        """Return the names of its kernels."""
        names: set[str] = set()
        for piece in self.batches(["kernel"]):
            names.update(piece["kernel"].to_pylist())
        return names

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows in pieces, optionally with only some columns."""
        yield from self._file.batches(ROW_GROUP_SIZE, columns)

    def row(self, number: int) -> dict[str, Any]:
        """Return a row without its ``device.*`` columns."""
        group = int(np.searchsorted(self._ends, number, side="right"))
        first_of_group = int(self._ends[group - 1]) if group else 0
        with translate_read_errors(self.path, RunTableError, "is damaged: {}"):
            (row,) = self._row_group(group).slice(number - first_of_group, 1).to_pylist()
            for column in self.mixed:
                if row.get(column) is not None:
                    row[column] = parse_json(row[column], object)
            return dict(row)


def extend(path: Path, runs: pd.DataFrame, journal_digest: str) -> None:
    """Append ``runs``, which came from the journal with this digest, to a file, atomically."""
    new, new_mixed = to_arrow(runs, path)
    parts = [_Part(pieces=iter([new]), schema=new.schema, mixed=new_mixed)]
    if path.exists():
        old = RunFile(path)
        parts.insert(0, _Part(pieces=old.batches(), schema=old.schema, mixed=old.mixed))

    with translate_read_errors(path, RunTableError, "cannot take these rows: {}"):
        merged, mixed = _merged(parts)
    schema = merged.with_metadata(file_metadata(mixed, journal_digest))

    with atomic_write(path, private=True) as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for part in parts:
                newly_mixed = mixed - part.mixed
                for piece in part.pieces:
                    writer.write_table(_conform(piece, schema, newly_mixed), ROW_GROUP_SIZE)
        # Sync it: the journal, which is synced, is removed next.
        with file.open("r+b") as written:
            os.fsync(written.fileno())


@dataclass(frozen=True)
class _Part:
    """Rows to write: their pieces, types, and the columns that are encoded as JSON already."""

    pieces: Iterator[pa.Table]
    schema: pa.Schema
    mixed: set[str]


def _merged(parts: Sequence[_Part]) -> tuple[pa.Schema, set[str]]:
    """Return the merged schema and the columns that must be JSON-encoded."""
    mixed = set[str]().union(*(part.mixed for part in parts))
    types_of_parts = [_types(part.schema) for part in parts]
    all_columns = dict.fromkeys(column for types in types_of_parts for column in types)
    merged: dict[str, pa.DataType] = {}
    for column in ordered_columns(all_columns):
        types = [types[column] for types in types_of_parts if column in types]
        try:
            common = _common_type(column, types)
        except pa.ArrowTypeError:
            # Problems and configurations may mix types, nothing else.
            if not column.startswith(PLAIN_GROUPS):
                raise
            mixed.add(column)
            common = pa.string()
        merged[column] = pa.string() if column in mixed else common
    return pa.schema(list(merged.items())), mixed


def _common_type(column: str, types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type that holds the values of all.

    Raises ArrowTypeError, which names the column, if there is none.
    """
    schemas = [pa.schema([(column, each)]) for each in types]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the type of each column; of a dictionary, that of its values."""
    return {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in schema
    }


def _conform(piece: pa.Table, schema: pa.Schema, to_json: set[str]) -> pa.Table:
    """Return rows with the columns and types of a schema; ``to_json`` columns are encoded."""
    columns = []
    for field in schema:
        if field.name not in piece.schema.names:
            columns.append(pa.nulls(len(piece), field.type))
            continue
        cells = piece[field.name]
        if field.name in to_json:
            texts = [None if value is None else json.dumps(value) for value in cells.to_pylist()]
            cells = pa.array(texts, pa.string())
        columns.append(cells.cast(field.type, safe=False))
    return pa.Table.from_arrays(columns, schema=schema)


def _is_list_of_numbers(field: pa.Field) -> bool:
    if not (pa.types.is_list(field.type) or pa.types.is_large_list(field.type)):
        return False
    element = field.type.value_type
    return bool(pa.types.is_floating(element) or pa.types.is_integer(element))


def row_key(identity: RowIdentity) -> int:
    """Return the key of one row."""
    kernel, device, problem, config = identity
    cells: dict[str, Any] = {"kernel": kernel, "device": device}
    cells |= {f"problem.{name}": value for name, value in problem.items()}
    cells |= {f"config.{name}": value for name, value in config.items()}
    return sum(_hash(column, value) for column, value in cells.items()) % 2**64


def _row_keys(table: "pa.Table | pa.RecordBatch", mixed: Collection[str] = ()) -> np.ndarray:
    """Return the key of every row as unsigned 64-bit integers; ``mixed`` columns hold JSON."""
    keys = np.zeros(table.num_rows, dtype=np.uint64)
    for column in table.schema.names:
        if column in ("kernel", "device") or column.startswith(PLAIN_GROUPS):
            keys += _column_hashes(column, table.column(column), column in mixed)
    return keys


def _column_hashes(column: str, cells: "pa.Array | pa.ChunkedArray", mixed: bool) -> np.ndarray:
    """Return the hash of every cell of a column; 0 for empty ones."""
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    values = cells.dictionary.to_pylist()
    if mixed:
        values = [None if value is None else parse_json(value, object) for value in values]

    # The last entry is for empty cells.
    hashes = [0 if is_empty(value) else _hash(column, value) for value in values]
    hashes.append(0)
    codes = cells.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    return np.array(hashes, dtype=np.uint64)[codes]


def _hash(column: str, value: Any) -> int:
    text = json.dumps([column, canonical_value(value)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

"""Reads and extends a run table's Parquet file in pieces, to bound memory.

A row's key is the sum, modulo 2^64, of a hash of each name with its value. Column order and empty
cells do not change it. For a table, each distinct value of a column is hashed once.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator
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
RowIdentity = tuple[str, str, Problem, Configuration]
"""What was run: kernel, device, problem, configuration."""


class RunFile:
    """One version of the file; `extend` writes the next version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self.mixed, self.journal_digest = open_runs(path)
        self.schema: pa.Schema = self._file.schema
        self._ends = np.cumsum(self._file.row_group_sizes)
        self._wanted = [c for c in self.schema.names if not c.startswith("device.")]
        self._group = lru_cache(CACHED_ROW_GROUPS)(
            lambda group: self._file.read_row_group(group, self._wanted)
        )

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def keys(self) -> np.ndarray:
        """Validate every row and return its key; raises RunTableError if a row is impossible."""
        keys = [np.zeros(0, dtype=np.uint64)]
        checked = [field.name for field in self.schema if not _is_numbers(field)]
        with translate_read_errors(self.path, RunTableError, "is damaged: {}"):
            first = 0
            for piece in self.batches(checked):
                validate(from_arrow(piece, self.mixed), str(self.path), first)
                first += len(piece)
                keys.append(_row_keys(piece, self.mixed))
        return np.concatenate(keys)

    def kernels(self) -> set[str]:
        """Return the names of its kernels."""
        return {name for part in self.batches(["kernel"]) for name in part["kernel"].to_pylist()}

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows in pieces, optionally with only some columns."""
        yield from self._file.batches(ROW_GROUP_SIZE, columns)

    def row(self, number: int) -> dict[str, Any]:
        """Return a row without its ``device.*`` columns."""
        group = int(np.searchsorted(self._ends, number, side="right"))
        first = int(self._ends[group - 1]) if group else 0
        with translate_read_errors(self.path, RunTableError, "is damaged: {}"):
            row = self._group(group).slice(number - first, 1).to_pylist()[0]
            for column in self.mixed & {c for c in row if row[c] is not None}:
                row[column] = parse_json(row[column], object)
            return dict(row)


def extend(path: Path, runs: pd.DataFrame, journal_digest: str) -> None:
    """Append ``runs``, which came from the journal with this digest, to a file, atomically."""
    new, mixed = to_arrow(runs, path)
    parts: list[tuple[Iterator[pa.Table], set[str]]] = [(iter([new]), mixed)]
    types = [_types(new.schema)]
    if path.exists():
        old = RunFile(path)
        parts.insert(0, (old.batches(), old.mixed))
        types.insert(0, _types(old.schema))
    with translate_read_errors(path, RunTableError, "cannot take these rows: {}"):
        schema, now_mixed = _merged(types, {c for _, names in parts for c in names})
    schema = schema.with_metadata(file_metadata(now_mixed, journal_digest))
    with atomic_write(path, private=True) as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for pieces, already in parts:
                for piece in pieces:
                    writer.write_table(_conform(piece, schema, now_mixed - already), ROW_GROUP_SIZE)
        with file.open("r+b") as written:
            os.fsync(written.fileno())  # the journal, which is synced, goes next


def _merged(types: list[dict[str, pa.DataType]], mixed: set[str]) -> tuple[pa.Schema, set[str]]:
    """Return the merged schema and the columns that must be JSON-encoded."""
    merged: dict[str, pa.DataType] = {}
    for column in ordered_columns({c: None for columns in types for c in columns}):
        kinds = [pa.schema([(column, t[column])]) for t in types if column in t]
        try:
            common = pa.unify_schemas(kinds, promote_options="permissive").field(0).type
            merged[column] = pa.string() if column in mixed else common
        except pa.ArrowTypeError:
            if not column.startswith(PLAIN_GROUPS):
                raise
            mixed, merged[column] = mixed | {column}, pa.string()
    return pa.schema(list(merged.items())), mixed


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    kinds = {field.name: field.type for field in schema}
    return {c: k.value_type if pa.types.is_dictionary(k) else k for c, k in kinds.items()}


def _conform(piece: pa.Table, schema: pa.Schema, to_json: set[str]) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in piece.schema.names:
            columns.append(pa.nulls(len(piece), field.type))
            continue
        cells = piece[field.name]
        if field.name in to_json:
            texts = (None if v is None else json.dumps(v) for v in cells.to_pylist())
            cells = pa.array(texts, pa.string())
        columns.append(cells.cast(field.type, safe=False))
    return pa.Table.from_arrays(columns, schema=schema)


def _is_numbers(field: pa.Field) -> bool:
    kind = field.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


def row_key(name: RowIdentity) -> int:
    """Return the key of one row."""
    kernel, device, problem, config = name
    cells: dict[str, Any] = {"kernel": kernel, "device": device}
    cells |= {f"problem.{n}": v for n, v in problem.items()}
    cells |= {f"config.{n}": v for n, v in config.items()}
    return sum(_hash(column, value) for column, value in cells.items()) % 2**64


def _row_keys(table: "pa.Table | pa.RecordBatch", mixed: Collection[str] = ()) -> np.ndarray:
    """Return the key of every row as unsigned 64-bit integers; ``mixed`` columns hold JSON."""
    keys = np.zeros(table.num_rows, dtype=np.uint64)
    for column in table.schema.names:
        if column in ("kernel", "device") or column.startswith(PLAIN_GROUPS):
            keys += _column_hashes(column, table.column(column), column in mixed)
    return keys


def _column_hashes(column: str, cells: "pa.Array | pa.ChunkedArray", mixed: bool) -> np.ndarray:
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    values = cells.dictionary.to_pylist()
    if mixed:
        values = [None if v is None else parse_json(v, object) for v in values]
    # the last entry is for empty cells
    hashes = [0 if v is None or v != v else _hash(column, v) for v in values] + [0]
    codes = cells.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    return np.array(hashes, dtype=np.uint64)[codes]


def _hash(column: str, value: Any) -> int:
    text = json.dumps([column, canonical_value(value)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

"""Row keys: one 64-bit number per (kernel, device, problem, configuration).

A key is the sum, modulo 2^64, of a hash of each name with its value. Column order and empty cells
do not change it. For a table, each distinct value of a column is hashed once.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from foretune.datasets.schema import PLAIN_GROUPS
from foretune.files import parse_json
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.values import canonical_value

RowIdentity = tuple[str, str, Problem, Configuration]
"""What was run: kernel, device, problem, configuration."""


def row_key(name: RowIdentity) -> int:
    """Return the key of one row."""
    return sum(_hash(column, value) for column, value in _cells(name)) % 2**64


def row_keys(table: "pa.Table | pa.RecordBatch", mixed: Collection[str] = ()) -> np.ndarray:
    """Return the key of every row as unsigned 64-bit integers.

    Columns in ``mixed`` hold JSON.
    """
    keys = np.zeros(table.num_rows, dtype=np.uint64)
    for column in table.schema.names:
        if is_identity_column(column):
            keys += _column_hashes(column, table.column(column), column in mixed)
    return keys


def is_identity_column(column: str) -> bool:
    """Return whether a column identifies a run (kernel, device, problem or configuration)."""
    return column in ("kernel", "device") or column.startswith(PLAIN_GROUPS)


def _cells(name: RowIdentity) -> Iterator[tuple[str, Any]]:
    kernel, device, problem, config = name
    yield from (("kernel", kernel), ("device", device))
    yield from ((f"problem.{n}", v) for n, v in problem.items())
    yield from ((f"config.{n}", v) for n, v in config.items())


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

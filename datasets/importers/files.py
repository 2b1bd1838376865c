"""The options of an import, and finding and reading its files."""

import csv
import io
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from foretune.datasets.importers.columns import as_categories
from foretune.errors import RunTableError, UsageError
from foretune.support.files import parse_json, read_bytes, require_cells, translate_read_errors
from foretune.support.parquet import read_parquet
from foretune.values import Value

TABLES = (".parquet", ".csv", ".csv.gz", ".txt")
"""Suffixes of the tables that `read_table` reads."""
JSON = (".json", ".json.gz")
"""Suffixes of the files that `read_json` reads."""


class WrongFile(RunTableError):
    """The file has another format than requested; the message names the expected one."""


@dataclass(frozen=True)
class Request:
    """Options of one import.

    ``kernel`` selects one in formats with several, and names it in others; ``device`` replaces the
    name in the file; ``mapping`` (run-table column -> its source) is for formats without fixed
    columns; ``constants`` map run-table columns to their value in every row.
    """

    kernel: str | None = None
    device: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Value] = field(default_factory=dict)

    def given(self, what: Literal["kernel", "device"], path: Path) -> str:
        """Return the given kernel or device of a file, or raise `UsageError`."""
        name = getattr(self, what)
        if not name:
            raise UsageError(f"{path} does not name its {what}: give --{what} NAME")
        return str(name)


def files_of(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return ``path``, or all files with these suffixes in the folder ``path``, at least one.

    Numbers in names sort by value, so version 0.5.9 comes before 0.5.14. The newest version of a
    configuration is therefore its last row. Raises RunTableError if there is no file.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RunTableError(f"{path} does not exist: give a file or a folder")
    endings = tuple(suffixes)
    files = [p for p in path.rglob("*") if p.name.lower().endswith(endings) and p.is_file()]
    if not files:
        raise RunTableError(f"{path} has no file that ends with {' or '.join(endings)}")
    return sorted(files, key=_natural)


def read_table(path: Path, expected: Sequence[str] = ()) -> pd.DataFrame:
    """Read a Parquet or CSV table (also ``.csv.gz``); text columns become categories.

    Raises RunTableError if the file is damaged; the message names the ``expected`` columns.
    """
    columns = f" (expected columns: {', '.join(expected)})" if expected else ""
    with translate_read_errors(path, RunTableError, f"is not a readable table{columns}: {{}}"):
        if path.suffix.lower() == ".parquet":
            # The stored index of a sampled table would misalign new columns.
            return read_parquet(path, dictionaries=True).to_pandas().reset_index(drop=True)
        return as_categories(read_csv(path))


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV table, optionally gzip-compressed; errors are OSError or ValueError."""
    file = io.BytesIO(read_bytes(path))

    # Refuse a header with too many columns before pandas allocates them.
    text = io.TextIOWrapper(io.BytesIO(file.getbuffer()), "utf-8-sig", newline="")
    lines = filter(None, csv.reader(text))
    header = next(lines, [])
    require_cells(0, len(header))

    table = pd.read_csv(file, skipinitialspace=True)
    columns_are_shifted = not isinstance(table.index, pd.RangeIndex)
    if len(table) and columns_are_shifted:
        raise ValueError("its lines have more cells than its header")
    return table


def require(
    found: Container[str], names: Iterable[str], path: Path, what: str, kind: str = "column"
) -> None:
    """Raise WrongFile unless a file's table or JSON object has all ``names``."""
    expected = list(names)
    missing = [name for name in expected if name not in found]
    if missing:
        raise WrongFile(
            f"{path} is not {what}: {kind} {missing[0]!r} is missing "
            f"(expected: {', '.join(expected)})"
        )


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers in names by their value."""
    pieces = re.split(r"(\d+)", str(path))
    return [(1, int(piece), "") if piece.isdigit() else (0, 0, piece) for piece in pieces]


def read_json(path: Path, keys: Sequence[str], what: str) -> Any:
    """Read a JSON object that has ``keys``, optionally gzip-compressed."""
    text = read_text(path, what, keys)
    expected = f"is not {what}: it is not readable JSON with {', '.join(keys)} ({{}})"
    with translate_read_errors(path, RunTableError, expected):
        data = parse_json(text, object)
    require(data if isinstance(data, dict) else (), keys, path, what, "key")
    return data


def read_text(path: Path, what: str, expected: Sequence[str]) -> str:
    """Read text, plain or gzip; raise RunTableError, which names the ``expected`` content."""
    message = f"is not {what}: it is not readable text with {', '.join(expected)} ({{}})"
    with translate_read_errors(path, RunTableError, message):
        return read_bytes(path).decode("utf-8-sig")

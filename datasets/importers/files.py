"""The options of an import, and finding and reading its files."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from foretune.datasets.file_contents import (
    PARQUET,
    begins_like_json,
    require_no_report,
    require_real_file,
)
from foretune.datasets.importers.columns import as_categories
from foretune.datasets.json_tables import read_json_table
from foretune.datasets.text_encoding import decoded_document
from foretune.datasets.text_tables import Dialect, read_text_table
from foretune.errors import RunTableError, UsageError
from foretune.support.files import (
    parse_json,
    read_bytes,
    require_regular_file,
    translate_read_errors,
)
from foretune.support.parquet import read_parquet
from foretune.values import Value

TABLES = (".parquet", ".csv", ".csv.gz", ".txt")
"""Suffixes of the tables that `read_table` reads."""
JSON = (".json", ".json.gz")
"""Suffixes of the files that `read_json` reads."""
JSON_LINES = (*JSON, ".jsonl", ".jsonl.gz")
"""Suffixes of files with a record a line, or a list of them."""
RECORDS = (*JSON_LINES, ".log")
"""Suffixes of records that tuners log."""


class WrongFile(RunTableError):
    """The file has another format than requested; the message names the expected one."""


@dataclass(frozen=True)
class Request:
    """Options of one import.

    ``kernel`` selects one in formats with several, and names it in others; ``device`` replaces the
    name in the file; ``mapping`` (run-table column -> its source) is for formats without fixed
    columns; ``constants`` map run-table columns to their value in every row; ``dialect`` is what
    is said about text tables. Readers append to ``notes`` how they understood a file, and what they
    skipped in it, one line each.
    """

    kernel: str | None = None
    device: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Value] = field(default_factory=dict)
    dialect: Dialect = field(default_factory=Dialect)
    notes: list[str] = field(default_factory=list)

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


def read_table(
    path: Path,
    expected: Sequence[str] = (),
    dialect: Dialect | None = None,
    notes: list[str] | None = None,
    header_words: Sequence[str] = (),
) -> pd.DataFrame:
    """Read a table in Parquet, text or JSON (also ``.gz``); text columns become categories.

    A line on how an unusual text table was understood is appended to ``notes``. For
    ``header_words``, see `read_text_table`. Raises
    RunTableError if the file is damaged; the message names the ``expected`` columns.
    """
    columns = f" (expected columns: {', '.join(expected)})" if expected else ""
    with translate_read_errors(path, RunTableError, f"is not a readable table{columns}: {{}}"):
        beginning = read_beginning(path)
        require_real_file(beginning)
        require_no_report(path)
        if path.suffix.lower() == ".parquet" or beginning.startswith(PARQUET):
            # The stored index of a sampled table would misalign new columns.
            return read_parquet(path, dictionaries=True).to_pandas().reset_index(drop=True)
        if begins_like_json(beginning) or path.name.lower().endswith(JSON_LINES):
            read = read_json_table(read_bytes(path))
        else:
            read = read_text_table(path, dialect or Dialect(), header_words)
    if read.understood and notes is not None:
        notes.append(f"{path}: {read.understood}")
    return as_categories(read.table)


def read_beginning(path: Path) -> bytes:
    """Return the first bytes of a file, which tell what it is."""
    with require_regular_file(path).open("rb") as file:
        return file.read(256)


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


def read_json(path: Path, keys: Sequence[str], what: str, notes: list[str] | None = None) -> Any:
    """Read a JSON object that has ``keys``, optionally gzip-compressed; see `read_text`."""
    text = read_text(path, what, keys, notes)
    expected = f"is not {what}: it is not readable JSON with {', '.join(keys)} ({{}})"
    with translate_read_errors(path, RunTableError, expected):
        # Profilers copy names of kernels as they are, control characters too.
        data = parse_json(text, object, strict=False)
    require(data if isinstance(data, dict) else (), keys, path, what, "key")
    return data


def read_text(
    path: Path, what: str, expected: Sequence[str], notes: list[str] | None = None
) -> str:
    """Read text, plain or gzip; raise RunTableError, which names the ``expected`` content.

    Bytes that are not UTF-8 become U+FFFD, with a line in ``notes``.
    """
    message = f"is not {what}: it is not readable text with {', '.join(expected)} ({{}})"
    with translate_read_errors(path, RunTableError, message):
        data = read_bytes(path)
        require_real_file(data)
        require_no_report(path)
        text, replaced = decoded_document(data)
    if replaced and notes is not None:
        notes.append(f"{path}: {replaced} bytes are not UTF-8 and read as \ufffd")
    return text.removeprefix("\ufeff")

"""Finding and reading the files that importers understand."""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from foretune.datasets.importers.columns import as_categories
from foretune.errors import RunTableError

TABLES = (".parquet", ".csv", ".csv.gz", ".txt")
"""How the names of tables end that `read_table` reads."""

JSON = (".json", ".json.gz")


class WrongFile(RunTableError):
    """A file is readable but not of the format asked for; the message says what was expected."""


def files_of(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return ``path`` itself, or the files of a folder and below with these endings.

    Numbers in names count as numbers, so that version 0.5.9 comes before 0.5.14 and the newest
    of several rows of one configuration is the newest version's.

    Raises:
        RunTableError: there is no such file or folder, or the folder has no such file.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RunTableError(f"{path} does not exist: give a file or a folder")
    endings = tuple(suffixes)
    found = [p for p in path.rglob("*") if p.name.lower().endswith(endings) and p.is_file()]
    if not found:
        raise RunTableError(f"{path} holds no file that ends with {' or '.join(endings)}")
    return sorted(found, key=_natural)


def read_table(path: Path, expected: Sequence[str] = ()) -> pd.DataFrame:
    """Read a Parquet or CSV table (also compressed); text columns become categories.

    Args:
        path: the file.
        expected: columns to name where the file is no table at all.

    Raises:
        RunTableError: the file is damaged, or is no table.
    """
    try:
        if path.suffix == ".parquet":
            # An index that was stored (a sample of a table) would misalign what is computed.
            return _read_parquet(path).reset_index(drop=True)
        return as_categories(pd.read_csv(path, skipinitialspace=True))
    except (OSError, EOFError, pa.ArrowException, ValueError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        columns = f" (expected columns: {', '.join(expected)})" if expected else ""
        raise RunTableError(f"{path} is not a readable table{columns}: {reason}") from e


def require(table: pd.DataFrame, columns: Iterable[str], path: Path, what: str) -> None:
    """Do nothing if ``table`` has all ``columns``.

    Raises:
        WrongFile: it lacks some.
    """
    wanted = list(columns)
    if missing := [c for c in wanted if c not in table]:
        raise WrongFile(
            f"{path} is not {what}: column {missing[0]!r} is missing "
            f"(expected: {', '.join(wanted)})"
        )


def _read_parquet(path: Path) -> pd.DataFrame:
    schema = pq.read_schema(path)
    texts = [
        f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)
    ]
    return pq.read_table(path, read_dictionary=texts).to_pandas()


def _natural(path: Path) -> list[tuple[int, int, str]]:
    pieces = re.split(r"(\d+)", str(path))
    return [(1, int(p), "") if p.isdigit() else (0, 0, p) for p in pieces]


def read_json(path: Path, keys: Sequence[str], what: str) -> Any:
    """Read a JSON object that has ``keys``, also one compressed with gzip.

    Raises:
        WrongFile: it lacks one of them.
        RunTableError: it is damaged, or no JSON.
    """
    text = read_text(path, what, keys)
    try:
        data = json.loads(text)
    except ValueError as e:
        raise RunTableError(
            f"{path} is not {what}: it is not readable JSON with {', '.join(keys)} ({e})"
        ) from e
    require_keys(data, keys, path, what)
    return data


def read_text(path: Path, what: str, expected: Sequence[str]) -> str:
    """Read a text file, also one compressed with gzip.

    Raises:
        RunTableError: it is damaged, or no text; the message says what was ``expected`` in it.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
        raise RunTableError(
            f"{path} is not {what}: it is not readable text with {', '.join(expected)} ({e})"
        ) from e


def require_keys(data: Any, keys: Sequence[str], path: Path, what: str) -> None:
    """Do nothing if ``data`` is a JSON object with all ``keys``.

    Raises:
        WrongFile: it is something else.
    """
    missing = [k for k in keys if k not in data] if isinstance(data, dict) else list(keys)
    if missing:
        raise WrongFile(
            f"{path} is not {what}: key {missing[0]!r} is missing (expected: {', '.join(keys)})"
        )

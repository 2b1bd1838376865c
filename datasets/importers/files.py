"""Finding and reading the files that importers understand."""

import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.datasets.importers.columns import as_categories
from foretune.errors import RunTableError
from foretune.files import read_bytes, read_parquet, translate_read_errors

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
    """Read a Parquet or CSV table (also ``.csv.gz``); text columns become categories.

    Args:
        path: the file.
        expected: columns to name where the file is no table at all.

    Raises:
        RunTableError: the file is damaged, or is no table.
    """
    columns = f" (expected columns: {', '.join(expected)})" if expected else ""
    with translate_read_errors(path, RunTableError, f"is not a readable table{columns}: {{}}"):
        if path.suffix == ".parquet":
            # An index that was stored (a sample of a table) would misalign what is computed.
            return read_parquet(path, dictionaries=True).to_pandas().reset_index(drop=True)
        table = pd.read_csv(io.BytesIO(read_bytes(path)), skipinitialspace=True)
        return as_categories(table)


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
    expected = f"is not {what}: it is not readable JSON with {', '.join(keys)} ({{}})"
    with translate_read_errors(path, RunTableError, expected):
        data = json.loads(text)
    require_keys(data, keys, path, what)
    return data


def read_text(path: Path, what: str, expected: Sequence[str]) -> str:
    """Read a text file, also one compressed with gzip.

    Raises:
        RunTableError: it is damaged, or no text; the message says what was ``expected`` in it.
    """
    message = f"is not {what}: it is not readable text with {', '.join(expected)} ({{}})"
    with translate_read_errors(path, RunTableError, message):
        return read_bytes(path).decode("utf-8-sig")


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

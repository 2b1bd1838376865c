"""Inputs of a plan: models, formats, systems, layouts, request lengths."""

import csv
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from foretune.errors import RunTableError


def shipped_rows(name: str, package: str = __name__) -> list[dict[str, str]]:
    """Return the rows of a CSV table that is shipped in a package, without lines of comments."""
    lines = shipped_text(name, package).splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def parse_rows(text: str, name: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of the CSV table ``name``; raises RunTableError if it lacks a column.

    Cells that a row lacks are empty.
    """
    reader = csv.DictReader(text.splitlines(), restval="")
    try:
        missing = [c for c in columns if c not in (reader.fieldnames or ())]
        rows = list(reader)
    except csv.Error as e:
        raise RunTableError(f"{name} is not a table: {e}") from e
    if missing:
        raise RunTableError(f"{name} has no column {missing[0]!r}: expected {', '.join(columns)}")
    return rows


def shipped_json(name: str) -> dict[str, Any]:
    """Return the object of a JSON file that is shipped in this package."""
    found: dict[str, Any] = json.loads(shipped_text(name))
    return found


def shipped_text(name: str, package: str = __name__) -> str:
    """Return the text of a file that is shipped in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")

"""Reads JSON lines, or a list of records, of other tools."""

from pathlib import Path
from typing import Any

from foretune.datasets.importers.files import read_text, require
from foretune.errors import RunTableError
from foretune.support.files import parse_json, translate_read_errors


def read_records(path: Path, keys: tuple[str, ...], what: str) -> list[dict[str, Any]]:
    """Return the records of a file, one a line or in a list; all have ``keys``."""
    text = read_text(path, what, keys).strip()
    expected = f"is not {what}: it is not readable JSON with {', '.join(keys)} ({{}})"
    with translate_read_errors(path, RunTableError, expected):
        if text.startswith("["):
            records = parse_json(text, list, strict=False)
        elif "\n" not in text or text.startswith("{\n"):
            records = [parse_json(text, object, strict=False)]
        else:
            lines = [line for line in text.splitlines() if line.strip()]
            records = [parse_json(line, object, strict=False) for line in lines]
    for record in records or [{}]:
        require(record if isinstance(record, dict) else (), keys, path, what, "key")
    return records

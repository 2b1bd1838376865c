"""Reads JSON lines, or a list of records, of other tools."""

from pathlib import Path
from typing import Any

from foretune.datasets.importers.files import WrongFile, read_text, require
from foretune.errors import RunTableError
from foretune.support.files import parse_json, translate_read_errors


def read_records(
    path: Path, keys: tuple[str, ...], what: str, kinds: tuple[type, ...] = (dict,)
) -> list[Any]:
    """Return the records of a file, one a line or in a list.

    They are objects with ``keys``, or of other ``kinds``, whose content the caller checks.
    """
    text = read_text(path, what, keys).strip()
    expected = f"is not {what}: it is not readable JSON with {', '.join(keys)} ({{}})"
    with translate_read_errors(path, RunTableError, expected):
        records = _records(text)
    for record in records or [{}]:
        if not isinstance(record, kinds):
            raise WrongFile(f"{path} is not {what}: it has the record {str(record)[:40]}")
        if isinstance(record, dict):
            require(record, keys, path, what, "key")
    return records


def _records(text: str) -> list[Any]:
    """Return the entries of a list, or the documents of all lines.

    Lines may end with commas; those that begin with ``#`` are comments.
    """
    try:
        document = parse_json(text, object, strict=False)
    except ValueError:
        if "\n" not in text:
            raise
        lines = [line.strip().rstrip(",") for line in text.splitlines()]
        records = [line for line in lines if line and not line.startswith("#")]
        return [parse_json(line, object, strict=False) for line in records]
    # A record itself may be a list, whose first entry is a number.
    is_list = isinstance(document, list)
    is_list_of_records = is_list and all(isinstance(entry, (dict, list)) for entry in document)
    return document if is_list_of_records else [document]

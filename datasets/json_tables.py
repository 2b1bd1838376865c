"""Reads JSON of anybody as a table: a list of objects, JSON lines, or lists as columns.

An object in an object becomes columns ``outer.inner``. JSON has one way to write numbers, so
nothing has to be found out about them.
"""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from foretune.datasets.file_contents import json_tool
from foretune.datasets.text_encoding import decoded_document
from foretune.datasets.text_tables import TextTable
from foretune.support.files import parse_json, require_cells

_NO_TABLE = "its JSON is no list of objects: write its rows as one, or as CSV"


def is_json(data: bytes) -> bool:
    """Whether a file begins like JSON."""
    return data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def read_json_table(data: bytes) -> TextTable:
    """Return the table in a JSON document or in JSON lines.

    Raises ValueError, which says what it is, for results of a tool that has its own format, and for
    other documents.
    """
    text, replaced = decoded_document(data)
    documents = _documents(text.removeprefix("\ufeff"))
    if not documents:
        raise ValueError("it is empty")
    tool = json_tool(documents[0])
    if tool is not None:
        raise ValueError(f"it is {tool}")
    kind = "JSON lines" if len(documents) > 1 else "JSON"
    if len(documents) == 1:
        rows, name = _rows(documents[0])
        kind += f", the list {name!r}" if name else ""
    else:
        rows = documents
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(_NO_TABLE)
    flat = [_flat(row) for row in rows]
    width = len({column for row in flat for column in row})
    require_cells(len(flat) * width, width)
    notes = [kind]
    if replaced:
        notes.append(f"{replaced} bytes are not UTF-8 and read as \ufffd")
    return TextTable(pd.DataFrame(flat), ", ".join(notes))


def _documents(text: str) -> list[Any]:
    """Return the document, or that of every line; commas between lines are left out."""
    try:
        return [parse_json(text, object, strict=False)]
    except ValueError as error:
        lines = [line.strip().rstrip(",") for line in text.splitlines() if line.strip()]
        if not all(line.startswith("{") and line.endswith("}") for line in lines):
            raise ValueError(f"it is damaged JSON: {error}") from None
    return [parse_json(line, dict, strict=False) for line in lines]


def _rows(document: Any) -> tuple[list[Any], str]:
    """Return a document's rows, and the name of the list that has them."""
    if isinstance(document, list):
        return document, ""
    if not isinstance(document, dict):
        raise ValueError(_NO_TABLE)
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    of_objects = {
        name: value
        for name, value in lists.items()
        if value and all(isinstance(row, dict) for row in value)
    }
    if len(of_objects) == 1:
        ((name, rows),) = of_objects.items()
        return rows, name
    is_columns = len(lists) == len(document) and len({len(value) for value in lists.values()}) == 1
    if is_columns and not of_objects:
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)], ""
    raise ValueError(_NO_TABLE)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return an object's values by their path; lists are texts."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            flat[f"{prefix}{name}"] = json.dumps(value)
        else:
            flat[f"{prefix}{name}"] = value
    return flat

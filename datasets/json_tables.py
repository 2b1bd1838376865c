"""Reads JSON of anybody as a table: a list of objects, JSON lines, or lists as columns.

All forms that pandas writes are read, too.

An object in an object becomes columns ``outer.inner``. JSON has one way to write numbers. A column
that holds nothing but such numbers as texts holds numbers, as in a CSV file.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from foretune.datasets.decimal_marks import POINT, plain_number
from foretune.datasets.file_contents import json_tool, json_without_table, like_json
from foretune.datasets.text_encoding import decoded_document
from foretune.datasets.text_tables import TextTable
from foretune.support.files import parse_json, require_cells

_NO_TABLE = "its JSON is no list of objects: write its rows as one, or as CSV"


def read_json_table(data: bytes) -> TextTable:
    """Return the table in a JSON document or in JSON lines.

    Raises ValueError, which says what it is, for results of a tool that has its own format, and for
    other documents.
    """
    text, replaced = decoded_document(data)
    documents, is_cut = _documents(text.removeprefix("\ufeff"))
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
    if is_cut:
        notes.append("the last line breaks off and is left out")
    if replaced:
        notes.append(f"{replaced} bytes are not UTF-8 and read as \ufffd")
    return TextTable(_with_numbers(pd.DataFrame(flat)), ", ".join(notes))


def _documents(text: str) -> tuple[list[Any], bool]:
    """Return the document, or that of every line, and whether the last line breaks off.

    Commas between lines are left out.
    """
    what = like_json(text.encode())
    if what is not None:
        raise ValueError(f"it is {what}")
    try:
        return [parse_json(text, object, strict=False)], False
    except ValueError as error:
        lines = [line.strip().rstrip(",") for line in text.splitlines() if line.strip()]
        is_cut = len(lines) > 1 and not lines[-1].endswith("}")
        whole = lines[:-1] if is_cut else lines
        if not all(map(_is_object, whole)):
            other = next(line for line in whole if not _is_object(line))
            hint = f"its line {other[:40]!r} is none" if len(lines) > 1 else error
            raise ValueError(f"it is damaged JSON: {hint}") from None
    return [parse_json(line, dict, strict=False) for line in whole], is_cut


def _is_object(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")


def _rows(document: Any) -> tuple[list[Any], str]:
    """Return a document's rows, and the name of the list that has them."""
    if isinstance(document, list):
        return document, ""
    if not isinstance(document, dict):
        raise ValueError(_NO_TABLE)
    rows = _pandas_rows(document)
    if rows is not None:
        return rows, ""
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    of_objects = {
        name: value
        for name, value in lists.items()
        if value and all(isinstance(row, dict) for row in value)
    }
    if len(of_objects) == 1:
        ((name, rows),) = of_objects.items()
        return rows, name
    # Lists of one length are columns; what stands beside them is the same in all rows.
    has_objects = any(isinstance(value, dict) for value in document.values())
    is_columns = len({len(value) for value in lists.values()}) == 1 and not has_objects
    if is_columns and not of_objects and (len(lists) > 1 or len(lists) == len(document)):
        same = {name: value for name, value in document.items() if name not in lists}
        cells = zip(*lists.values(), strict=True)
        return [{**same, **dict(zip(lists, row, strict=True))} for row in cells], ""
    what = json_without_table(document)
    if what is not None:
        raise ValueError(f"it is {what}")
    if _is_one_row(document):
        return [document], ""  # JSON lines, of which there is one
    raise ValueError(_NO_TABLE)


def _is_one_row(document: Mapping[str, Any]) -> bool:
    """Whether an object is one row: it has values beside objects, or different objects."""
    if not document or any(isinstance(value, list) for value in document.values()):
        return False
    parts = [set(part) for part in document.values() if isinstance(part, dict)]
    is_keyed = len(parts) == len(document) and all(part == parts[0] for part in parts)
    return not is_keyed or len(parts) == 1


def _with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which columns of numbers in texts are numbers."""
    columns = {}
    for name, cells in table.items():
        texts = [cell for cell in cells if isinstance(cell, str)]
        present = cells.notna().sum()
        if texts and len(texts) == present and all(plain_number(t, POINT) == t for t in texts):
            cells = pd.to_numeric(cells)
        columns[name] = cells
    return pd.DataFrame(columns)


def _pandas_rows(document: Mapping[str, Any]) -> list[Any] | None:
    """Return the rows of a table that ``DataFrame.to_json`` wrote; None for other documents.

    By default it writes an object per column, whose keys number the rows; with ``index``, an object
    per row; with ``split``, the names and the rows apart.
    """
    if set(document) in ({"columns", "data"}, {"columns", "index", "data"}):
        return [dict(zip(document["columns"], row, strict=True)) for row in document["data"]]
    parts = list(document.values())
    if not parts or not all(isinstance(part, dict) for part in parts):
        return None
    if _number_rows(document):
        return parts
    keys = list(parts[0])
    if _number_rows(keys) and all(list(part) == keys for part in parts):
        return [{name: part[key] for name, part in document.items()} for key in keys]
    return None


def _number_rows(keys: Iterable[str]) -> bool:
    """Whether keys are 0, 1, 2, …, as those of a table without an index."""
    return all(key == str(number) for number, key in enumerate(keys))


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

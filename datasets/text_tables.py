"""Reads text tables of anybody: encoding, separator, decimal mark and header rows are found.

Each is told from the whole file, never from its first lines; what stays ambiguous is refused, and
the message names the option that settles it. Errors are OSError, ValueError or ForetuneError.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from foretune.datasets.decimal_marks import COMMA, POINT, decimal_mark, plain_number
from foretune.datasets.file_contents import require_text_table
from foretune.datasets.time_units import MS_PER_UNIT, times_of_runs
from foretune.errors import RunTableError, UsageError
from foretune.support.files import read_bytes, require_cells

SEPARATORS = (",", ";", "\t", "|")

_NAMES = {"\t": "tab"}
_MARK_NAMES = {POINT: "decimal point", COMMA: "decimal comma"}
_ENCODINGS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_EXCEL_SEPARATOR = re.compile(r"sep=(.)\r?\n")
_NUMBER_AND_UNIT = re.compile(r"([+-]?[\d.,]*\d[\d.,]*)(\s*[A-Za-zµμ%]+)")

_FOUR_DIGITS = re.compile(r"[1-9]\d{3,}")

Row = list[str]


@dataclass(frozen=True)
class Dialect:
    """What the user says about a text table; None is found."""

    separator: str | None = None
    decimal: str | None = None


@dataclass(frozen=True)
class TextTable:
    """A table, and one line on how it was understood ("" for commas and decimal points)."""

    table: pd.DataFrame
    understood: str


@dataclass(frozen=True)
class _Body:
    """Rows in the order of the header's columns, and what was left out between them."""

    rows: list[Row]
    units: Row | None
    runs: int


def read_text_table(path: Path, dialect: Dialect = Dialect()) -> TextTable:
    """Return the table in a text file, optionally compressed with gzip."""
    data = read_bytes(path)
    require_text_table(data)
    encoding = next((e for bom, e in _ENCODINGS.items() if data.startswith(bom)), "utf-8-sig")
    text = data.decode(encoding)
    if "\0" in text:
        raise ValueError("it has zero bytes: save it as UTF-8")

    excel = _EXCEL_SEPARATOR.match(text)
    if excel is not None:
        text = text[excel.end() :]
    said = dialect.separator or (excel[1] if excel is not None else None)
    separator = said or _separator(text, path)
    rows = _rows(text, separator)
    header = rows[0] if rows else []
    require_cells(0, len(header))
    if _is_too_long(rows):
        hint = "; a decimal comma needs quotes" if separator == COMMA else ""
        raise ValueError(f"its lines have more cells than its header{hint}")
    if header and all(plain_number(cell.strip(), POINT) for cell in header):
        raise ValueError("its first line has numbers: add a line with the columns' names")

    body = _body(header, rows[1:], path)
    columns = list(zip(*body.rows, strict=True)) if body.rows else [()] * len(header)
    distinct = [set(map(str.strip, column)) for column in columns]
    # Who separates cells by commas hardly ever writes points between thousands, and never beside a
    # number of four digits without one.
    prefers_points = separator == COMMA and any(
        _FOUR_DIGITS.fullmatch(cell) for cells in distinct for cell in cells
    )
    mark = dialect.decimal or decimal_mark(
        _numbers(distinct), where=str(path), ambiguous_points=prefers_points
    )
    table = _typed_table(header, columns, distinct=distinct, mark=mark, units=body.units)

    is_plain = separator == COMMA and mark == POINT and encoding == "utf-8-sig"
    notes = []
    if not is_plain:
        notes = [f"separator {_NAMES.get(separator, separator)}", _MARK_NAMES[mark]]
    if encoding != "utf-8-sig":
        notes.append(encoding.upper())
    if body.runs > 1:
        notes.append(f"{body.runs} tables, one after the other")
    if body.units is not None:
        notes.append("units in the second line")
    return TextTable(table, ", ".join(notes))


def _rows(text: str, separator: str) -> list[Row]:
    """Return the lines' cells; empty lines are left out."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    return [cells for cells in lines if any(cell.strip() for cell in cells)]


def _is_too_long(rows: Sequence[Row]) -> bool:
    """Whether a line has more cells than the header."""
    return bool(rows) and max(map(len, rows)) > len(rows[0])


def _separator(text: str, path: Path) -> str:
    """Return the separator that splits every line as it splits the header."""
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    candidates = [separator for separator in SEPARATORS if separator in first_line]
    if not candidates:
        return COMMA  # a table of one column
    if len(candidates) == 1:
        return candidates[0]

    parsed = {separator: _rows(text, separator) for separator in candidates}
    fitting = {
        separator: rows
        for separator, rows in parsed.items()
        if len(rows[0]) > 1 and not _is_too_long(rows) and min(map(len, rows)) == len(rows[0])
    }
    # Cells that another candidate would split again are no whole cells, unless they are numbers.
    clean = [
        separator
        for separator, rows in fitting.items()
        if not any(
            other in cell
            for row in rows[1:]
            for cell in row
            for other in candidates
            if other != separator and plain_number(cell.strip(), COMMA) is None
        )
    ]
    if len(clean) == 1:
        return clean[0]
    if not clean and len(fitting) == 1:
        return next(iter(fitting))
    if COMMA in candidates and not fitting:
        return COMMA
    names = " or ".join(_NAMES.get(separator, separator) for separator in candidates)
    raise UsageError(f"{path}: its separator may be {names}: give import --separator")


def _body(header: Row, lines: Sequence[Row], path: Path) -> _Body:
    """Return the rows below the header; a line with the same names begins another run."""
    names = [name.strip() for name in header]
    order = list(range(len(header)))
    rows: list[Row] = []
    units: Row | None = None
    runs = 1
    for number, cells in enumerate(lines):
        stripped = [cell.strip() for cell in cells]
        if stripped == names or (len(names) > 1 and sorted(stripped) == sorted(names)):
            # Appended runs may have another order of columns.
            if len(set(names)) == len(names):
                order = [stripped.index(name) for name in names]
            runs += 1
            continue
        if _is_another_header(stripped, names):
            raise RunTableError(
                f"{path}: a second header, {', '.join(stripped[:4])}, …, has other columns than "
                "the first: give each table as a file of its own"
            )
        if _is_line_of_units(stripped):
            if number == 0:
                units = [*stripped, *[""] * (len(header) - len(cells))]
            if number == 0 or cells == units:
                continue
        padded = [*cells, *[""] * (len(header) - len(cells))]
        rows.append([padded[i] for i in order])
    return _Body(rows=rows, units=units, runs=runs)


def _is_another_header(cells: Row, names: Row) -> bool:
    """Whether a line without numbers names columns: half of the header's, or the time of a run."""
    if any(map(_is_number, cells)):
        return False
    repeated = sum(cell in names for cell in cells if cell)
    return (repeated > 0 and repeated * 2 >= len(names)) or bool(times_of_runs(cells))


def _is_line_of_units(cells: Row) -> bool:
    """Whether a line has units of time and no number: a second line of the header."""
    has_unit = any(cell.strip("()[]") in MS_PER_UNIT for cell in cells)
    return has_unit and not any(map(_is_number, cells))


def _is_number(text: str) -> bool:
    return plain_number(text, POINT) is not None or plain_number(text, COMMA) is not None


def _numbers(distinct: Iterable[set[str]]) -> Iterable[str]:
    """Yield all cells, and the numbers before units (``12,5us``)."""
    for cells in distinct:
        for cell in sorted(cells):
            matched = _NUMBER_AND_UNIT.fullmatch(cell)
            yield matched[1] if matched is not None else cell


def _typed_table(
    header: Row,
    columns: Sequence[Sequence[str]],
    distinct: Sequence[set[str]],
    mark: str,
    units: Row | None,
) -> pd.DataFrame:
    """Return the table with plain numbers; pandas finds the columns' types."""
    names = list(header)
    if units is not None:
        for i, unit in enumerate(units):
            if unit.strip("()[]") in MS_PER_UNIT:
                names[i] = f"{names[i].strip()} [{unit.strip('()[]')}]"
    plain_columns = []
    for column, cells in zip(columns, distinct, strict=True):
        plain = {cell: _plain_cell(cell, mark) for cell in cells}
        plain_columns.append([plain[cell.strip()] for cell in column])
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(names)
    # A line of one empty cell would be skipped as an empty line.
    writer.writerows(zip(*plain_columns, strict=True))
    buffer.seek(0)
    return pd.read_csv(buffer, skipinitialspace=True)


def _plain_cell(cell: str, mark: str) -> str:
    """Return a cell with its number, if it is one, written with a decimal point."""
    number = plain_number(cell, mark)
    if number is not None:
        return number
    matched = _NUMBER_AND_UNIT.fullmatch(cell)
    if matched is not None:
        number = plain_number(matched[1], mark)
        return cell if number is None else f"{number}{matched[2]}"
    return cell

"""Reads text tables of anybody: encoding, separator, decimal mark and header rows are found.

Each is told from the whole file, never from its first lines; what stays ambiguous is refused, and
the message names the option that settles it. Errors are OSError, ValueError or ForetuneError.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from foretune.datasets.decimal_marks import COMMA, GAPS, POINT, decimal_mark, plain_number
from foretune.datasets.file_contents import printed_by, require_text_table, tool_of_text
from foretune.datasets.status_words import STATUS_OF_WORD
from foretune.datasets.summary_lines import summary_start
from foretune.datasets.text_encoding import UTF_8, decoded_table
from foretune.datasets.text_rows import NAMES, Row, TextRows, is_number, is_too_long, split_rows
from foretune.datasets.time_units import MS_PER_UNIT, times_of_runs
from foretune.errors import ForetuneError, RunTableError
from foretune.support.files import read_bytes, require_cells
from foretune.values import counted

_MARK_NAMES = {POINT: "decimal point", COMMA: "decimal comma"}
_NUMBER_AND_UNIT = re.compile(r"([+-]?[\d.,]*\d[\d.,]*)(\s*[A-Za-z\u00b5\u03bc%]+)")
_FOUR_DIGITS = re.compile(r"[1-9]\d{3,}")


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
    """The lines below a header.

    Attributes:
        rows: the lines of cells, in the order of the header's columns.
        units: the line of units below the header; None if there is none.
        n_tables: number of tables, one appended to the other with a header of its own.
    """

    rows: list[Row]
    units: Row | None
    n_tables: int


@dataclass(frozen=True)
class _Cells:
    """The cells of all rows, column by column, and their decimal mark."""

    columns: list[Sequence[str]]
    distinct: list[set[str]]
    mark: str


def read_text_table(
    path: Path, dialect: Dialect = Dialect(), header_words: Sequence[str] = ()
) -> TextTable:
    """Return the table in a text file, optionally compressed with gzip.

    Lines above the first one that has all ``header_words`` are left out: programs print there. What
    a known tool wrote, and is no table of its own, is refused by the tool's name.
    """
    data = read_bytes(path)
    require_text_table(data)
    text, encoding = decoded_table(data)
    if printed := printed_by(text):
        raise ValueError(f"it is {printed}")
    try:
        return _read_table(_from_header(text, header_words), encoding, dialect, path)
    except (ValueError, ForetuneError):
        if not header_words and (tool := tool_of_text(text)):
            raise ValueError(f"it is {tool}") from None
        raise


def _read_table(text: str, encoding: str, dialect: Dialect, path: Path) -> TextTable:
    """Return the table in a text that begins with its header."""
    split = split_rows(text, separator=dialect.separator, where=path)
    rows = split.rows
    if not rows:
        raise ValueError("it is empty")
    header = rows[0]
    require_cells(cells=0, columns=len(header))  # the file already bounds its cells
    _require_header(header, rows, separator=split.separator)
    body_rows = rows[1:-1] if split.is_cut else rows[1:]
    body = _body(header, body_rows, path)

    # Lines at the end that sum up the runs are no runs. To find them, numbers must be read. Without
    # them, columns may hold numbers only, and other cells decide on the decimal mark: read it anew.
    cells = _cells(body.rows, header, split.separator, dialect, path)
    n_runs = summary_start(body.rows, cells.mark)
    summaries = [_first_cell(row) for row in body.rows[n_runs:]]
    if summaries:
        cells = _cells(body.rows[:n_runs], header, split.separator, dialect, path)
    table = _typed_table(_names(header, body.units), cells)

    notes = _notes(split, body, mark=cells.mark, encoding=encoding, summaries=summaries)
    return TextTable(table, ", ".join(notes))


def _notes(
    split: TextRows, body: _Body, *, mark: str, encoding: str, summaries: Sequence[str]
) -> list[str]:
    """Return how a table was understood, as far as it is not what most tables are."""
    notes = []
    is_plain = split.separator == COMMA and mark == POINT and encoding == UTF_8
    if not is_plain:
        separator_name = NAMES.get(split.separator, split.separator)
        notes = [f"separator {separator_name}", _MARK_NAMES[mark]]
    if encoding != UTF_8:
        notes.append(encoding.upper())
    if body.n_tables > 1:
        notes.append(f"{body.n_tables} tables, one after the other")
    if body.units is not None:
        notes.append("units in the second line")
    if split.comments:
        notes.append(f"{counted(split.comments, 'comment')} left out")
    if split.is_cut:
        notes.append("the last line breaks off and is left out")
    if summaries:
        notes.append(f"lines that sum up are left out: {', '.join(summaries)}")
    return notes


def _from_header(text: str, words: Sequence[str]) -> str:
    """Return a text from the first line with all words on, or all of it if there is none."""
    if not words:
        return text
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        if all(word in line for word in words):
            return "".join(lines[i:])
    return text


def _require_header(header: Row, rows: Sequence[Row], separator: str) -> None:
    """Raise ValueError unless the first line can name the columns."""
    named = [cell for cell in header if cell.strip()]
    most_cells = max(sum(bool(cell.strip()) for cell in row) for row in rows)
    if len(named) == 1 and len(header) > 1 and most_cells > 1:
        raise ValueError(_title_hint(named[0]))
    if is_too_long(rows):
        if len(header) == 1 and rows[1:] and min(map(len, rows[1:])) > 1:
            raise ValueError(_title_hint(header[0]))
        hint = "; a decimal comma needs quotes" if separator == COMMA else ""
        raise ValueError(f"its lines have more cells than its header{hint}")
    if all(plain_number(cell.strip(), POINT) for cell in header):
        raise ValueError("its first line has numbers: add a line with the columns' names")


def _title_hint(line: str) -> str:
    return (
        f"its first line, {line!r}, names no columns: remove what stands above the line with the "
        "columns' names"
    )


def _first_cell(row: Row) -> str:
    """Return the first cell that is not empty."""
    return next((cell.strip() for cell in row if cell.strip()), "")


def _cells(
    rows: Sequence[Row], header: Row, separator: str, dialect: Dialect, path: Path
) -> _Cells:
    """Return the cells of each column, and the decimal mark that they or the user tell."""
    columns: list[Sequence[str]] = [()] * len(header)
    if rows:
        columns = list(zip(*rows, strict=True))
    distinct = [set(map(str.strip, column)) for column in columns]
    mark = dialect.decimal or _mark(distinct, separator=separator, path=path)
    return _Cells(columns, distinct, mark)


def _mark(distinct: Sequence[set[str]], separator: str, path: Path) -> str:
    """Return the decimal mark of a table."""
    # Who separates cells by commas hardly ever writes points between thousands, and never beside a
    # number of four digits without one.
    prefers_points = separator == COMMA and any(
        _FOUR_DIGITS.fullmatch(cell) for cells in distinct for cell in cells
    )
    columns_of_numbers = [
        cells for cells in distinct if any(_are_numbers(cells, mark) for mark in _MARK_NAMES)
    ]
    return decimal_mark(
        _numbers(columns_of_numbers), where=str(path), ambiguous_points=prefers_points
    )


def _body(header: Row, lines: Sequence[Row], path: Path) -> _Body:
    """Return the rows below the header; a line with the same names begins another table."""
    names = [name.strip() for name in header]
    order = list(range(len(header)))
    rows: list[Row] = []
    units: Row | None = None
    n_tables = 1
    is_below_header = True
    for cells in lines:
        stripped = [cell.strip() for cell in cells]
        if stripped == names or (len(names) > 1 and sorted(stripped) == sorted(names)):
            # Appended tables may have another order of columns.
            if len(set(names)) == len(names):
                order = [stripped.index(name) for name in names]
            n_tables += 1
            is_below_header = True
            continue
        if _is_another_header(stripped, names):
            raise RunTableError(
                f"{path}: a second header, {', '.join(stripped[:4])}, …, has other columns than "
                "the first: give each table as a file of its own"
            )
        padded = [*cells, *[""] * (len(header) - len(cells))]
        ordered = [padded[i] for i in order]
        if is_below_header and _is_line_of_units(stripped):
            is_below_header = False
            if n_tables == 1:
                units = ordered
                continue
            if list(map(str.strip, ordered)) == list(map(str.strip, units or ())):
                continue
            raise RunTableError(
                f"{path}: a second line of units, {', '.join(stripped[:4])}, …, differs from the "
                "first: give each table as a file of its own"
            )
        is_below_header = False
        rows.append(ordered)
    return _Body(rows=rows, units=units, n_tables=n_tables)


def _is_another_header(cells: Row, names: Row) -> bool:
    """Whether a line without numbers names columns: half of the header's, or the time of a run."""
    if any(map(is_number, cells)):
        return False
    repeated = sum(cell in names for cell in cells if cell)
    return (repeated > 0 and repeated * 2 >= len(names)) or bool(times_of_runs(cells))


def _is_line_of_units(cells: Row) -> bool:
    """Whether a line has units of time and no number: a second line of the header."""
    has_unit = any(cell.strip("()[]") in MS_PER_UNIT for cell in cells)
    return has_unit and not any(map(is_number, cells))


def _numbers(distinct: Iterable[set[str]]) -> Iterable[str]:
    """Yield all cells, and the numbers before units (``12,5us``)."""
    for cells in distinct:
        for cell in sorted(cells):
            matched = _NUMBER_AND_UNIT.fullmatch(cell)
            yield matched[1] if matched is not None else cell


def _names(header: Row, units: Row | None) -> list[str]:
    """Return the columns' names, with the units of the second line."""
    names = [name.strip() for name in header]
    for i, unit in enumerate(units or ()):
        word = unit.strip().strip("()[]")
        if word in MS_PER_UNIT:
            names[i] = f"{names[i]} [{word}]"
    return names


def _typed_table(names: Sequence[str], cells: _Cells) -> pd.DataFrame:
    """Return the table with plain numbers; pandas finds the columns' types.

    Cells that pandas takes for gaps, such as ``NA`` and ``None``, are gaps among texts, too. Raises
    ValueError if two columns with other cells have one name.
    """
    columns_by_name: dict[str, list[str]] = {}
    for i, name in enumerate(names):
        distinct = cells.distinct[i]
        if not name and distinct <= {""}:
            continue  # lines end with a separator
        plain = {cell: cell for cell in distinct}
        if _are_numbers(distinct, cells.mark):
            plain = {cell: _plain_cell(cell, cells.mark) for cell in distinct}
        values = [plain[cell.strip()] for cell in cells.columns[i]]

        # A column that is there twice is taken once.
        unique_name = name or f"Unnamed: {i}"
        if unique_name in columns_by_name and columns_by_name[unique_name] != values:
            raise ValueError(f"two of its columns are called {name!r}: rename one of them")
        columns_by_name[unique_name] = values

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(columns_by_name)
    # A line of one empty cell would be skipped as an empty line.
    writer.writerows(zip(*columns_by_name.values(), strict=True))
    buffer.seek(0)
    return pd.read_csv(buffer, skipinitialspace=True)


def _are_numbers(cells: set[str], mark: str) -> bool:
    """Whether a column holds numbers: all its cells are, but gaps and words for failed runs.

    In a column of texts, ``128 128`` is two tile sizes, not a number with grouped thousands.
    """
    return all(
        _plain_number(cell, mark) is not None
        or cell.lower() in GAPS
        or cell.lower().replace(" ", "_") in STATUS_OF_WORD
        for cell in cells
    )


def _plain_number(cell: str, mark: str) -> str | None:
    """Return a number, or one with a unit, with a decimal point; None if a cell is neither."""
    number = plain_number(cell, mark)
    if number is not None:
        return number
    matched = _NUMBER_AND_UNIT.fullmatch(cell)
    if matched is None:
        return None
    number = plain_number(matched[1], mark)
    return None if number is None else f"{number}{matched[2]}"


def _plain_cell(cell: str, mark: str) -> str:
    """Return a cell with its number, if it is one, written with a decimal point."""
    return _plain_number(cell, mark) or cell

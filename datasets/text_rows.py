"""Splits a text into rows of cells: separator, comments, and lines that only draw the table."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.datasets.decimal_marks import COMMA, POINT, plain_number
from foretune.errors import UsageError

SEPARATORS = (",", ";", "\t", "|")
SPACE = " "
"""Any number of spaces between cells."""
WIDE_SPACE = "  "
"""Two or more spaces between cells, which may have single ones."""

UNNAMED_FIRST = ("\t", SPACE, WIDE_SPACE)
"""Separators of tables whose header may lack the first name; a comma may also be a decimal one."""

NAMES = {"\t": "tab", SPACE: "spaces", WIDE_SPACE: "spaces"}
"""Separators whose name is not the character."""

_EXCEL_SEPARATOR = re.compile(r"sep=(.)\r?\n")
_CONFLICT = re.compile(r"^<{7} .*?^={7}\r?$.*?^>{7} ", re.MULTILINE | re.DOTALL)
_DRAWN_LINE = re.compile(r"[\s|+:=-]*-{3,}[\s|+:=-]*")
"""The line below the header in Markdown, and the borders that databases draw."""
_EMPHASIS = re.compile(r"(\*\*|__|\*|`)([^*`]+)\1")
_COUNT_OF_ROWS = re.compile(r"\(\d+ rows?\)|\d+ rows? in set\b.*")
"""What psql and MySQL print below a table."""
_VERTICAL_LINES = "│┃┆║"
_OTHER_LINES = "─━═┄┈┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋┡┩╇┢┪╈╞╡╪╔╗╚╝╠╣╦╩╬"
_BOXES = str.maketrans({**dict.fromkeys(_VERTICAL_LINES, "|"), **dict.fromkeys(_OTHER_LINES, "-")})
"""Characters that draw a table: those between cells, and those of borders."""
_SPACES = {SPACE: re.compile(r"\s+"), WIDE_SPACE: re.compile(r"\s{2,}|\t")}

Row = list[str]


@dataclass(frozen=True)
class TextRows:
    """The rows of a text, the header first; ``is_cut`` if its last line breaks off."""

    rows: list[Row]
    separator: str
    comments: int
    is_cut: bool


def split_rows(text: str, *, separator: str | None, where: object) -> TextRows:
    """Return the rows of a text; the separator is found unless it is given.

    Raises UsageError if the separator may be one of several, ValueError for a text that is no
    table.
    """
    if _CONFLICT.search(text) is not None:
        raise ValueError("it has conflict markers of Git: resolve them first")
    excel = _EXCEL_SEPARATOR.match(text)
    if excel is not None:
        text = text[excel.end() :]
        separator = separator or excel[1]

    text, comments = _without_comments(text.translate(_BOXES))
    found = separator or _separator(text, where)
    rows = _rows(text, found)
    ends_with_line = not text or text[-1] in "\r\n"
    is_cut = len(rows) > 2 and not ends_with_line and _is_cut(rows)
    return TextRows(rows=rows, separator=found, comments=comments, is_cut=is_cut)


def is_number(text: str) -> bool:
    """Whether a text is a number, with one of the decimal marks."""
    return plain_number(text, POINT) is not None or plain_number(text, COMMA) is not None


def is_too_long(rows: Sequence[Row]) -> bool:
    """Whether a line has more cells than the header."""
    return bool(rows) and max(map(len, rows)) > len(rows[0])


def _is_cut(rows: Sequence[Row]) -> bool:
    """Whether only the last line has fewer cells than the header."""
    return len(rows[-1]) < len(rows[0]) and min(map(len, rows[:-1])) == len(rows[0])


def _without_comments(text: str) -> tuple[str, int]:
    """Return a text without its lines that begin with ``#``, and their number.

    If no other line names the columns, the last comment above the numbers does.
    """
    if not text.lstrip().startswith("#") and "\n#" not in text and "\r#" not in text:
        return text, 0
    lines = text.splitlines(keepends=True)
    is_comment = [_is_comment(line) for line in lines]
    first = next((i for i, c in enumerate(is_comment) if not c and lines[i].strip()), len(lines))
    has_numbers = first < len(lines) and _has_number(lines[first])
    header = None
    if has_numbers and first > 0 and is_comment[first - 1]:
        header = lines[first - 1].lstrip().lstrip("#").lstrip()
    kept = [line for line, comment in zip(lines, is_comment, strict=True) if not comment]
    n_comments = sum(is_comment)
    if header is not None:
        kept.insert(0, header)
        n_comments -= 1
    return "".join(kept), n_comments


def _is_comment(line: str) -> bool:
    """Whether a line is a comment; a column may be called ``#``."""
    stripped = line.strip().lstrip('"')
    return stripped.startswith("#") and not re.match(r'#"?\s*[,;\t|]', stripped)


def _has_number(line: str) -> bool:
    return any(is_number(cell) for cell in re.split(r"[,;|\s]+", line.strip()))


def _rows(text: str, separator: str) -> list[Row]:
    """Return the lines' cells; empty lines, and those that only draw the table, are left out."""
    if separator in _SPACES:
        lines = [line.strip() for line in text.splitlines()]
        split = (_SPACES[separator].split(line) for line in lines if not _is_drawn(line))
        rows = [[_without_quotes(cell) for cell in cells] for cells in split]
    else:
        rows = _quoted_rows(text, separator)
    if separator == "|":
        rows = _without_borders(rows)
    rows = [cells for cells in rows if any(cell.strip() for cell in cells)]

    # Lines may end with separators that the header lacks.
    width = len(rows[0]) if rows else 0
    rows = [cells if any(map(str.strip, cells[width:])) else cells[:width] for cells in rows]
    return _with_row_numbers(rows) if separator in UNNAMED_FIRST else rows


def _without_quotes(cell: str) -> str:
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1] if is_quoted else cell


def _with_row_numbers(rows: list[Row]) -> list[Row]:
    """Return rows whose header names all cells: R and pandas do not name the numbers of rows."""
    width = len(rows[0]) if rows else 0
    if len(rows) < 2 or any(len(cells) != width + 1 for cells in rows[1:]):
        return rows
    numbers = [cells[0].strip('" ') for cells in rows[1:]]
    for first in (0, 1):
        if numbers == [str(first + row) for row in range(len(numbers))]:
            return [["", *rows[0]], *rows[1:]]
    return rows


def _quoted_rows(text: str, separator: str) -> list[Row]:
    """Return the lines' cells, which may have quotes; ValueError if one is not closed."""

    def read(*, strict: bool) -> list[Row]:
        lines = io.StringIO(text, newline="")
        return list(csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict))

    try:
        return read(strict=True)
    except csv.Error as e:
        if "unexpected end of data" in str(e):
            raise ValueError("a quote in it is not closed: correct the line") from e
    # Quotes inside cells are characters like others.
    return read(strict=False)


def _is_drawn(line: str) -> bool:
    return _DRAWN_LINE.fullmatch(line) is not None or _COUNT_OF_ROWS.fullmatch(line) is not None


def _without_borders(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a drawn table without its lines and borders."""
    kept = [cells for cells in rows if cells and not _is_drawn("|".join(cells).strip())]
    if kept and all(not cells[0].strip() and not cells[-1].strip() for cells in kept):
        kept = [cells[1:-1] for cells in kept]
    return [[_without_emphasis(cell.strip()) for cell in cells] for cells in kept]


def _without_emphasis(cell: str) -> str:
    """Return a cell of Markdown without marks of bold text, italics and code."""
    matched = _EMPHASIS.fullmatch(cell)
    return matched[2] if matched else cell


def _separator(text: str, where: object) -> str:
    """Return the separator that splits the lines as it splits the header."""
    lines = (line for line in text.splitlines() if line.strip() and not _is_drawn(line.strip()))
    first_line = next(lines, "")
    candidates = [separator for separator in SEPARATORS if separator in first_line]
    if not candidates:
        return _spaces(text, where)
    if len(candidates) == 1:
        return candidates[0]

    # 1. The separator splits every line as the header. If none does, lines may be short (a run that
    # failed, a file that breaks off), but it splits one of them as the header.
    parsed = {separator: _rows(text, separator) for separator in candidates}
    splitting = {
        s: rows for s, rows in parsed.items() if len(rows[0]) > 1 and not is_too_long(rows)
    }
    fitting = {s: rows for s, rows in splitting.items() if min(map(len, rows)) == len(rows[0])}
    if not fitting:
        fitting = {
            separator: rows
            for separator, rows in splitting.items()
            if len(rows[0]) in map(len, rows[1:])
        }

    # 2. Cells that another candidate would split again are no whole cells, unless they are numbers.
    clean = [
        separator
        for separator, rows in fitting.items()
        if not _can_be_split(rows[1:], others=[c for c in candidates if c != separator])
    ]
    if len(clean) == 1:
        return clean[0]
    if not clean and len(fitting) == 1:
        return next(iter(fitting))

    # Decimal commas without quotes: the reader says so when it refuses the lines' many cells.
    if COMMA in candidates and not fitting and is_too_long(parsed[COMMA]):
        return COMMA
    raise _ambiguous(candidates, where)


def _can_be_split(rows: Sequence[Row], others: Sequence[str]) -> bool:
    """Whether a cell that is not a number has one of the ``others`` among separators."""
    return any(
        other in cell and plain_number(cell.strip(), COMMA) is None
        for row in rows
        for cell in row
        for other in others
    )


def _spaces(text: str, where: object) -> str:
    """Return how spaces separate the cells; a comma if they do not: the table has one column."""
    parsed = {separator: _rows(text, separator) for separator in (WIDE_SPACE, SPACE)}
    fitting = {
        separator: rows
        for separator, rows in parsed.items()
        if len(rows) > 1 and len(rows[0]) > 1 and {len(row) for row in rows} == {len(rows[0])}
    }
    if len({len(rows[0]) for rows in fitting.values()}) > 1:
        raise UsageError(
            f"{where}: one or several spaces may separate its cells: save it with commas"
        )
    return next(iter(fitting), COMMA)


def _ambiguous(candidates: Sequence[str], where: object) -> UsageError:
    names = " or ".join(NAMES.get(separator, separator) for separator in candidates)
    return UsageError(f"{where}: its separator may be {names}: give --separator")

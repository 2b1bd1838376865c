"""Lines below a table that sum it up: a total, a mean.

They are no runs. A line is one if its first word says so, or if its numbers are the sum or the mean
of those above.
"""

import math
import re
from collections.abc import Sequence

from foretune.datasets.decimal_marks import plain_number

SUMMARIES = {
    *("total", "totals", "subtotal", "summary", "overall", "average", "avg", "geomean"),
    *("gesamt", "summe", "mittelwert"),
}
"""First words, in lower case, that nothing but a summary has."""
OPERATIONS = {
    *("sum", "mean", "median", "min", "max", "minimum", "maximum"),
    *("std", "stddev", "stdev", "count"),
}
"""First words, in lower case, of summaries and of kernels."""

MIN_ROWS = 2
"""Rows above a line that it may sum up; with one, a total would be an equal row."""
TOLERANCE = 0.001
"""Relative error of a sum or a mean that was rounded."""
MIN_SPREAD = 0.01
"""Relative difference of numbers whose mean says more than that all are equal."""

Row = Sequence[str]


def summary_start(rows: Sequence[Row], mark: str) -> int:
    """Return the number of rows above the lines at the end that sum them up."""
    end = len(rows)
    while end > MIN_ROWS and _first_word(rows[end - 1], mark) in SUMMARIES | OPERATIONS:
        end -= 1
    if end == len(rows) and _leaves_cells_out(rows):
        end -= 1

    # A kernel may be called like an operation: lines that sum nothing up belong to the table.
    while end < len(rows):
        above = rows[:end]
        if all(_sums_up(line, above, mark) for line in rows[end:]):
            break
        end += 1
    return end


def _sums_up(line: Row, above: Sequence[Row], mark: str) -> bool:
    """Whether a line sums up those above, by its first word or by its numbers."""
    word = _first_word(line, mark)
    if word in SUMMARIES:
        return word not in {_first_word(row, mark) for row in above}
    return _word_among_numbers(line, above, mark) or _is_computed(line, above, mark)


def _first_text(row: Row, mark: str) -> int | None:
    """Return the position of the first cell with a text that is not a number."""
    is_text = (bool(cell.strip()) and _number(cell, mark) is None for cell in row)
    return next((i for i, text in enumerate(is_text) if text), None)


def _first_word(row: Row, mark: str) -> str:
    """Return the first word of a line, in lower case; empty if it is part of a name.

    ``Total:`` and ``mean (3 runs)`` begin with a word, ``avg_pool2d`` and ``sum-1`` do not.
    """
    position = _first_text(row, mark)
    if position is None:
        return ""
    found = re.match(r"\W*([^\W_]+):?(\s|$)", row[position].strip().lower())
    return found[1] if found else ""


def _leaves_cells_out(rows: Sequence[Row]) -> bool:
    """Whether only the last line has empty cells."""
    if len(rows) <= MIN_ROWS or all(cell.strip() for cell in rows[-1]):
        return False
    return all(cell.strip() for row in rows[:-1] for cell in row)


def _word_among_numbers(line: Row, above: Sequence[Row], mark: str) -> bool:
    """Whether a line's first word stands in a column of numbers."""
    position = _first_text(line, mark)
    if position is None:
        return False
    return all(_number(row[position], mark) is not None for row in above)


def _is_computed(line: Row, above: Sequence[Row], mark: str) -> bool:
    """Whether every number of a line is the sum or the mean of the numbers above it."""
    numbers = {i: n for i, cell in enumerate(line) if (n := _number(cell, mark)) is not None}
    is_varied = False
    for column, number in numbers.items():
        values = [v for row in above if (v := _number(row[column], mark)) is not None]
        if not values:
            return False
        total = math.fsum(values)
        is_sum = math.isclose(number, total, rel_tol=TOLERANCE)
        is_mean = math.isclose(number, total / len(values), rel_tol=TOLERANCE)
        if not (is_sum or is_mean):
            return False
        spread = max(values) - min(values)
        is_varied |= is_sum or spread > MIN_SPREAD * abs(number)
    return is_varied


def _number(cell: str, mark: str) -> float | None:
    number = plain_number(cell.strip(), mark)
    return None if number is None else float(number)

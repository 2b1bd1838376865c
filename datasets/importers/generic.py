"""Any CSV or Parquet table, with a mapping from run-table columns to sources.

A source is a column (``m``) or an expression over columns (``latency_us*0.001``, ``2*m*n*k``).
Columns that already have a run-table name (``problem.M``, ``time_ms``) need no mapping.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.column_roles import UNIT_WORDS
from foretune.datasets.file_contents import tool_of_columns
from foretune.datasets.importers.files import Request, read_table
from foretune.datasets.importers.row_times import (
    UNIT_COLUMN,
    is_failure,
    repeats_in_cells,
    require_a_time,
    require_one_metric,
    row_units,
    time_hint,
)
from foretune.datasets.plain_tables import typed_runs
from foretune.datasets.schema import NUMBERS, PLAIN_GROUPS, SAMPLES, TEXT, is_run_column
from foretune.datasets.status_words import (
    NO_ERRORS,
    STATED,
    combined_status,
    is_answer,
    is_failure_word,
    is_status_word,
    is_unfinished,
    status_columns,
    statuses,
    tells_outcomes,
)
from foretune.datasets.time_units import (
    MS_PER_UNIT,
    has_unit,
    in_milliseconds,
    names_the_time_of_a_run,
    times_with_units,
    words_of,
)
from foretune.errors import SpaceError, UsageError
from foretune.measurement import Status
from foretune.support.expression import Expression
from foretune.values import counted

TIME_MAPPING = "--map time_ms="
"""In what is said of a known tool's table: which of its times counts is the user's to say."""


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return the mapped rows of a table; rows without a status are ``ok``.

    A column whose name says that it holds the time of a run, and its unit, needs no mapping, nor
    does one that says how a run ended.
    """
    table = read_table(path, dialect=request.dialect, notes=request.notes)
    table = table.rename(columns=str)
    require_one_metric(table, path)
    sources = {column: column for column in table.columns if is_run_column(column)}
    sources |= request.mapping
    given = {}
    if request.kernel:
        given["kernel"] = request.kernel
    if request.device:
        given["device"] = request.device
    said = {*sources, *given, *request.constants}
    if "time_ms" not in said and (column := time_column(table, path)) is not None:
        sources["time_ms"] = column
    _check({*sources, *given, *request.constants}, table, path)

    rows = pd.DataFrame({c: _source(s, table, path) for c, s in sources.items()})
    if "time_ms" in sources and sources["time_ms"] in table:
        _set_times(rows, table, sources["time_ms"], path=path, notes=request.notes)
    elif "time_ms" in sources and (units := row_units(table, None, path)) is not None:
        several = sorted(set(units) - {""})
        if len(several) > 1:
            raise UsageError(
                f"{path}: {UNIT_COLUMN} has several units ({', '.join(several)}): map the column "
                "of times alone, without a factor"
            )
    if "status" not in request.constants:
        columns = _status_columns(table, sources)
        times = table.get(sources.get("time_ms", ""), pd.Series(dtype=object)).astype(object)
        ended = _has_ended(table, columns)
        if not ended.all():
            left_out = counted(int((~ended).sum()), "row")
            request.notes.append(f"{path}: {left_out} of runs that have not ended left out")
            rows, table, times = rows[ended], table[ended], times[ended[times.index]]
        _set_status(rows, table, columns, times=times, path=path, notes=request.notes)
    _fail_huge_times(rows, path, request.notes)
    return typed_runs(rows, {"source": f"generic {path.name}"}, given)


def time_column(table: pd.DataFrame, where: object) -> str | None:
    """Return the one column that is the time of a run, with its unit; UsageError if several are.

    In a table of a known tool whose time the user has to map, no column is.
    """
    tool = tool_of_columns(set(map(str, table.columns)))
    if tool is not None and TIME_MAPPING in tool:
        return None
    found = times_with_units(table)
    if len(found) > 1:
        raise UsageError(
            f"time_ms has no source: add --map time_ms=COLUMN*FACTOR; {where} has the times "
            f"{', '.join(found)}"
        )
    if found:
        return found[0]
    # ``duration,unit``: the unit stands beside it.
    timed = [column for column in table.columns if names_the_time_of_a_run(column)]
    named = [column for column in timed if UNIT_WORDS.isdisjoint(words_of(column))]
    if len(named) == 1 and row_units(table, named[0], Path(str(where))) is not None:
        return named[0]
    return None


def _set_times(
    rows: pd.DataFrame, table: pd.DataFrame, column: str, *, path: Path, notes: list[str]
) -> None:
    """Set the rows' times in milliseconds, and their repeats if the cells have them."""
    require_a_time(column, path)
    values = table[column]
    repeats = repeats_in_cells(values, column)
    if repeats is not None:
        values = repeats.map(np.median, na_action="ignore").astype(float)
        notes.append(f"{path}: time is the median of the repeats in {column}")
    units = row_units(table, column, path)
    times, unit = _times(values, units, column, path)
    rows["time_ms"] = times
    if unit:
        notes.append(f"{path}: time in {unit} ({column})")
    if repeats is not None:
        factors = times / values
        scaled = [
            None if each is None else [number * factor for number in each]
            for each, factor in zip(repeats, factors, strict=True)
        ]
        rows[SAMPLES] = pd.Series(scaled, index=rows.index, dtype=object)


def _times(
    values: "pd.Series[Any]", units: "pd.Series[str] | None", column: str, path: Path
) -> tuple["pd.Series[Any]", str]:
    """Return times in milliseconds, and their unit if it is not that of ``time_ms``."""
    if units is not None:
        factors = units.map(lambda unit: MS_PER_UNIT.get(unit, math.nan))
        numbers = pd.to_numeric(values.astype(object), errors="coerce").astype(float)
        return numbers * factors, " and ".join(sorted(set(units) - {""}))
    try:
        times, unit = in_milliseconds(values, column)
    except UsageError as e:
        raise UsageError(f"{path}: {e}") from e
    return times, "" if column == "time_ms" and unit == "ms" else unit


def _require_one_unit(rule: Expression, columns: Mapping[str, "pd.Series[Any]"]) -> None:
    """Raise UsageError if an expression uses a column whose cells have units."""
    for name in rule.names:
        cells = set(columns[name].astype(object).dropna())
        with_unit = [c for c in cells if isinstance(c, str) and has_unit(c)]
        if with_unit:
            raise UsageError(
                f"cells such as {min(with_unit)!r} have units: map the column alone, without a "
                "factor"
            )


def _status_columns(table: pd.DataFrame, sources: Mapping[str, str]) -> list[str]:
    """Return the columns that say how a run ended: as the user says, or as their names say."""
    said = sources.get("status")
    if said is not None and said != "status" and said in table:
        return [said]
    return stated_status(table, used=sources.values())


def _has_ended(table: pd.DataFrame, columns: Sequence[str]) -> "pd.Series[bool]":
    """Return whether each row is of a run that has ended."""
    ended = pd.Series(True, index=table.index)
    for column in columns:
        ended &= ~table[column].map(is_unfinished).astype(bool)
    return ended


def _set_status(
    rows: pd.DataFrame,
    table: pd.DataFrame,
    columns: Sequence[str],
    *,
    times: "pd.Series[Any]",
    path: Path,
    notes: list[str],
) -> None:
    """Set the rows' status from columns that say it; without any, from errors and words.

    ``times`` are the times as they stand in the table.
    """
    if not columns:
        _set_failures(rows, times, path, notes)
        return
    try:
        rows["status"] = combined_status(table, columns)
    except UsageError as e:
        raise UsageError(f"{path}: {e}") from e
    if list(columns) != ["status"]:
        notes.append(f"{path}: status from {' and '.join(columns)}")


def _set_failures(
    rows: pd.DataFrame, times: "pd.Series[Any]", path: Path, notes: list[str]
) -> None:
    """Set the status of rows whose error says that they failed, or a word in place of a time."""
    status = pd.Series(Status.OK.value, index=rows.index, dtype=object)
    if "error" in rows:
        texts = rows["error"].astype(object)
        failed = texts.notna() & ~texts.map(_says_no_error)
        status[failed] = Status.RUNTIME_ERROR.value
        if failed.any():
            notes.append(f"{path}: {failed.sum()} rows failed, says column error")
    words = times[times.map(is_failure_word).astype(bool)]
    if len(words):
        status[words.index] = statuses(words, "time_ms")
        listed = ", ".join(sorted(set(words)))
        notes.append(f"{path}: {len(words)} rows failed, says a word in place of a time: {listed}")
    if (status != Status.OK.value).any():
        rows["status"] = status


def _fail_huge_times(rows: pd.DataFrame, path: Path, notes: list[str]) -> None:
    """Set the status of rows with a time that no run takes, which tuners write for failures."""
    if "time_ms" not in rows:
        return
    failed = is_failure(rows["time_ms"])
    if "status" in rows:
        failed &= rows["status"] == Status.OK.value
    if not failed.any():
        return
    ended = rows.get("status", pd.Series(Status.OK.value, index=rows.index)).astype(object)
    rows["status"] = ended.where(~failed, Status.RUNTIME_ERROR.value)
    left_out = counted(int(failed.sum()), "row")
    notes.append(f"{path}: {left_out} failed: their time is twelve days or more")


def _says_no_error(text: Any) -> bool:
    """Whether a text in a column of errors is none: a number may be an error of the result."""
    word = str(text).strip().lower()
    if word in NO_ERRORS:
        return True
    try:
        float(word)
    except ValueError:
        return False
    return True


def stated_status(table: pd.DataFrame, used: Iterable[str] = ()) -> list[str]:
    """Return the columns whose names, and whose words if need be, say how a run ended.

    Columns of another name count if all their texts are words for success and failure, unless they
    are ``used`` for something else. Raises UsageError for a column with known words and unknown
    ones. CUTLASS's profiler writes in one column whether the output was right, and in another why a
    kernel did not run.
    """
    named = [
        column
        for column in status_columns(table.columns)
        if column.lower() in STATED or _has_known_words(table, column)
    ]
    others = [column for column in table.columns if column not in {*named, *used}]
    return named + [column for column in others if tells_outcomes(table[column])]


def _has_known_words(table: pd.DataFrame, column: str) -> bool:
    cells = table[column].astype(object).dropna()
    ended = cells[~cells.map(is_unfinished).astype(bool)]
    if not len(ended):
        return len(cells) > 0
    try:
        statuses(ended, column)
    except UsageError:
        if ended.map(is_status_word).any() or ended.map(is_answer).all():
            raise
        return False
    return True


def _check(sources: set[str], table: pd.DataFrame, path: Path) -> None:
    """Raise UsageError if a column is unknown, or a needed one has no source."""
    unknown = sorted(column for column in sources if not is_run_column(column))
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not a run-table column: there are {', '.join((*NUMBERS, *TEXT))}, "
            "and all that start with problem., config., device., static., counter. or simulated."
        )
    has = ", ".join(map(str, table.columns))
    tool = tool_of_columns(set(map(str, table.columns)))
    for needed in ("time_ms", "kernel", "device"):
        if needed not in sources and tool is not None:
            raise UsageError(f"{path} is {tool}; else give --map {needed}=COLUMN; it has {has}")
        if needed not in sources:
            hint = f"add --map {needed}=COLUMN"
            if needed == "time_ms":
                hint = time_hint(map(str, table.columns))
            raise UsageError(f"{needed} has no source: {hint}; {path} has the columns {has}")
    if not any(c.startswith(PLAIN_GROUPS) for c in sources):
        raise UsageError(
            f"no column describes what was run: add --map problem.M=COLUMN; {path} has {has}"
        )


def _source(source: str, table: pd.DataFrame, path: Path) -> "pd.Series[object]":
    """Return a column of the table, or the values of an expression over its columns."""
    if source in table:
        return table[source]

    # An expression cannot name a column like "latency (us)": give it another name there. Longer
    # ones come first, because they may contain others.
    text = source
    named = {str(column): column for column in table.columns}
    for i, column in enumerate(sorted(named, key=len, reverse=True)):
        if not column.isidentifier() and column in text:
            alias = f"column_{i}_"
            text = text.replace(column, alias)
            named[alias] = column

    has = f"it has {', '.join(named)}"
    try:
        expression = Expression(text, "source")
        missing = sorted(expression.names - set(named))
        if missing:
            raise UsageError(f"{path} has no column {missing[0]!r}: {has}")
        _require_one_unit(expression, {name: table[named[name]] for name in expression.names})
        columns = {name: _numbers(table[named[name]]) for name in expression.names}
        # An expression without columns has as many rows, too.
        return pd.Series(expression.evaluate({**columns, "": np.empty(len(table))}))
    except SpaceError as e:
        raise UsageError(f"{e}; {path} has no such column: {has}") from e


def _numbers(column: "pd.Series[Any]") -> np.ndarray:
    return pd.to_numeric(column.astype(object), errors="coerce").to_numpy(dtype=float)

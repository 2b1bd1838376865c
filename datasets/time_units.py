"""Units of time: in the name of a column (``latency_us``) or in its cells (``12.5 us``)."""

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from foretune.datasets.decimal_marks import GAPS
from foretune.datasets.durations import CLOCK, parse_duration
from foretune.datasets.status_words import is_failure_word
from foretune.errors import UsageError

MS_PER_UNIT = {
    "ns": 1e-6,
    "nsec": 1e-6,
    "nsecs": 1e-6,
    "nsecond": 1e-6,
    "nseconds": 1e-6,
    "nanosecond": 1e-6,
    "nanoseconds": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "μs": 1e-3,
    "usec": 1e-3,
    "usecs": 1e-3,
    "usecond": 1e-3,
    "useconds": 1e-3,
    "microsecond": 1e-3,
    "microseconds": 1e-3,
    "ms": 1.0,
    "msec": 1.0,
    "msecs": 1.0,
    "msecond": 1.0,
    "mseconds": 1.0,
    "millisecond": 1.0,
    "milliseconds": 1.0,
    "millis": 1.0,
    "micros": 1e-3,
    "nanos": 1e-6,
    "s": 1e3,
    "sec": 1e3,
    "secs": 1e3,
    "second": 1e3,
    "seconds": 1e3,
    "mins": 6e4,
    "minute": 6e4,
    "minutes": 6e4,
    "hr": 3.6e6,
    "hrs": 3.6e6,
    "hour": 3.6e6,
    "hours": 3.6e6,
}
"""Unit in lower case -> milliseconds per unit."""

TIME_WORDS = (
    *("time", "latency", "runtime", "duration", "elapsed"),
    *("times", "latencies", "runtimes", "durations"),
)
"""Words for the time of a run; a column is taken for it only if its name has one, and a unit."""

WORDS_OF_DURATIONS = ("latency", "runtime", "duration", "elapsed")
"""Words of columns in which a clock is no time of the day."""

AVERAGE_WORDS = {
    *("t", "avg", "average", "mean", "median", "med", "p", "50", "kernel", "gpu", "exec"),
    *("timing", "timings"),
}
"""Words that may accompany a unit instead of a word for time: ``median_us``."""

OTHER_TIMES = (
    "compile",
    "compilation",
    "build",
    "tuning",
    "search",
    "total",
    "setup",
    "wall",
    "overhead",
    "std",
    "stddev",
    "stdev",
    "var",
    "variance",
    "error",
    "err",
    "timestamp",
    "start",
    "end",
    "cpu",
    "host",
    "timeout",
    "limit",
    "reference",
    "ref",
    "baseline",
    "min",
    "minimum",
    "fastest",
    "max",
    "maximum",
    "worst",
    "slowest",
    "predicted",
    "prediction",
    "estimated",
    "estimate",
    "expected",
    "theoretical",
    "ideal",
    "target",
    "saved",
    "idle",
    "wait",
    "waiting",
    "queue",
    "queueing",
    "sleep",
    "warmup",
    "warm",
    "first",
    "compiling",
    *("log", "ln", "sqrt", "inverse", "inv", "reciprocal", "squared"),
    *("normalized", "normalised", "relative", "delta", "diff", "difference", "gap"),
    *("budget", "slack", "jitter", "deviation", "sigma", "iqr", "range", "spread", "noise"),
)
"""Words in names of times that are not the time of a run."""

_WORD = re.compile(r"[A-Z]?[a-zµμ]+|[A-Z]+(?![a-z])|\d+")
_LAST_WORD = re.compile(r"(?:^|[\s_\-./,:])([A-Za-zµμ]+)$")
_CAMEL_CASE = re.compile(r"[a-z]([NUM]s)$")
"""The last word of ``AverageNs``."""

_BRACKETS = re.compile(r"[(\[{]\s*([A-Za-zµμ]+)\s*[)\]}]$")
_TAIL = re.compile(r"(?i)(?:^|[\W_])p(?:[6-9]\d|100)(?:$|[\W_]|\d)")
"""A percentile above the median, such as ``p99``."""

_SCALED = re.compile(r"(?i)per[\s_]*\d{2,}|^\s*1\s*/|[*x]\s*1(?:0{2,}|e\d)")
"""Many runs' time, or a function of one: ``time_per_1000_ms``, ``1/time_ms``."""

_AVERAGE_AT_END = re.compile(r"(?i)(?<=[a-zµμ)\]}])[\s_.\-]+(?:mean|avg|average|median|med|p50)$")
"""An average behind the unit: ``time_ms_mean``."""

_WITH_UNIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ]+)")


def words_of(name: str) -> set[str]:
    """Return the words of a column's name in lower case: ``time`` and ``us`` of ``TimeUs``."""
    return {word.lower() for word in _WORD.findall(name)}


def _is_unit(text: str) -> bool:
    """Whether a text is a unit of time, in any case."""
    return text.lower() in MS_PER_UNIT


def unit_in_name(name: str) -> str | None:
    """Return the unit of time at the end of a column's name: ``latency_us``, ``runtime [ms]``.

    A last word ``s`` is a unit only beside a word for time: ``waves_s`` may be anything.
    """
    name = _AVERAGE_AT_END.sub("", name.strip())
    found = _BRACKETS.search(name) or _CAMEL_CASE.search(name) or _LAST_WORD.search(name)
    if found is None:
        return None
    unit = found[1]
    if not _is_unit(unit):
        return None
    in_brackets = _BRACKETS.search(name) is not None
    names_a_time = any(word.endswith(TIME_WORDS) for word in words_of(name))
    if unit.lower() == "s" and not (in_brackets or names_a_time):
        return None
    # "TFLOP/s" and "per s" are rates.
    before = name[: found.start(1)].rstrip(" ([{_")
    if before.endswith("/") or before.lower().endswith("per"):
        return None
    return unit


def has_unit(cell: str) -> bool:
    """Whether a cell is a number with a unit of time, or a duration: ``12.5 us``, ``1m 2.3s``."""
    matched = _WITH_UNIT.fullmatch(cell.strip())
    if matched is not None and _is_unit(matched[2]):
        return True
    return parse_duration(cell) is not None


def times_of_runs(columns: Iterable[str]) -> list[str]:
    """Return the columns whose names say that they hold the time of a run, and its unit."""
    return [c for c in columns if names_the_time_of_a_run(c) and unit_in_name(c) is not None]


def times_with_units(table: pd.DataFrame) -> list[str]:
    """Return the columns that hold the time of a run, with its unit in their name or cells.

    If no name has a word for time, they are those that name only a unit: ``median_us``.
    """
    named = [column for column in table.columns if names_the_time_of_a_run(column)]
    with_unit = [
        column
        for column in named
        if unit_in_name(column) is not None or _all_have_units(table[column], column)
    ]
    return with_unit or [column for column in table.columns if _is_average(column)]


def names_the_time_of_a_run(column: str) -> bool:
    """Whether a column's name has a word for time, and none for another time."""
    return not words_of(column).isdisjoint(TIME_WORDS) and not is_other_time(column)


def is_other_time(column: str) -> bool:
    """Whether a column's name says that it holds another time than that of a run."""
    words = words_of(column)
    is_time = not words.isdisjoint(TIME_WORDS) or unit_in_name(column) is not None
    is_other = (_TAIL.search(column) or _SCALED.search(column)) is not None
    return is_time and (is_other or not words.isdisjoint(OTHER_TIMES))


def _is_average(column: str) -> bool:
    """Whether a name says nothing but a unit and which average: ``ms``, ``median_us``."""
    unit = unit_in_name(column)
    if unit is None or MS_PER_UNIT[unit.lower()] > MS_PER_UNIT["s"]:
        return False  # gpu_hours are a price
    return words_of(column) <= {unit.lower(), *AVERAGE_WORDS}


def _all_have_units(values: "pd.Series[Any]", name: str) -> bool:
    """Whether all cells have a unit, but gaps and words for failed runs.

    ``12:30:05`` in a column ``time`` may be a time of the day; in ``elapsed``, it is a duration.
    """
    if pd.api.types.is_timedelta64_dtype(values):
        return True  # of Parquet and pandas
    cells = {cell for cell in set(values.astype(object).dropna()) if not _is_no_time(cell)}
    if not cells or not all(isinstance(cell, str) and has_unit(cell) for cell in cells):
        return False
    durations = [parse_duration(cell) for cell in cells]
    has_clock = any(each is not None and each.notation == CLOCK for each in durations)
    return not has_clock or not words_of(name).isdisjoint(WORDS_OF_DURATIONS)


def _is_no_time(cell: Any) -> bool:
    return is_failure_word(cell) or (isinstance(cell, str) and cell.strip().lower() in GAPS)


def in_milliseconds(values: "pd.Series[Any]", name: str) -> tuple["pd.Series[Any]", str]:
    """Return a time column in milliseconds, and the unit that it had ("" if none is written).

    Cells that are not numbers stay: they are counted as such later. Raises UsageError if some cells
    have units and others do not, or a unit is unknown.
    """
    if pd.api.types.is_timedelta64_dtype(values):
        return values.dt.total_seconds() * MS_PER_UNIT["s"], "durations"
    unit = unit_in_name(name)
    texts = values.astype(object)
    distinct = [cell for cell in set(texts.dropna()) if isinstance(cell, str)]
    durations = {
        cell: duration for cell in distinct if (duration := parse_duration(cell)) is not None
    }
    cells = {
        cell: matched
        for cell in distinct
        if cell not in durations and (matched := _WITH_UNIT.fullmatch(cell.strip()))
    }
    if not cells and not durations:
        _require_no_half_numbers(texts, name)
        if unit is None or MS_PER_UNIT[unit.lower()] == 1.0:
            return values, unit or ""
        numbers = pd.to_numeric(texts, errors="coerce").astype(float)
        return numbers * MS_PER_UNIT[unit.lower()], unit

    how_to = "write all cells in one unit, without it, and give --map time_ms=COLUMN*FACTOR"
    for cell, matched in cells.items():
        if matched[2].lower() not in MS_PER_UNIT or (matched[2].isupper() and len(matched[2]) < 3):
            raise UsageError(
                f"column {name!r} has a cell {cell!r}, whose unit is unknown: {how_to}"
            )
    has_no_unit = texts.where(~texts.isin([*cells, *durations]))
    if pd.to_numeric(has_no_unit, errors="coerce").notna().any():
        some = min([*cells, *durations])
        raise UsageError(
            f"column {name!r} has cells with a unit ({some!r}) and without one: {how_to}"
        )
    _require_no_half_numbers(has_no_unit, name)
    milliseconds = {
        cell: float(matched[1]) * MS_PER_UNIT[matched[2].lower()] for cell, matched in cells.items()
    }
    milliseconds |= {cell: duration.milliseconds for cell, duration in durations.items()}
    notations = {duration.notation for duration in durations.values()}
    units = sorted({matched[2] for matched in cells.values()} | notations)
    return texts.map(milliseconds).astype(float), " and ".join(units)


def _require_no_half_numbers(texts: "pd.Series[Any]", name: str) -> None:
    """Raise UsageError for a cell that begins like a number and is none."""
    for cell in sorted(c for c in set(texts.dropna()) if isinstance(c, str)):
        if not re.match(r"[<>~≈±]?\s*[+-]?[.,]?\d", cell.strip()):
            continue
        try:
            float(cell)
        except ValueError:
            raise UsageError(
                f"column {name!r} has a cell {cell!r}, which is not a number: write plain numbers"
            ) from None

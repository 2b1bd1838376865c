"""Checks runs before training: warns about suspect rows, and leaves out impossible ones.

No table is rejected: a few impossible rows are dropped; many are kept, with a warning.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.errors import DataWarning
from foretune.family import Family
from foretune.features.arrays import Rows, as_array
from foretune.features.families.formats import FORMATS
from foretune.features.roofline import row_cost, row_roofline_ms, with_rates
from foretune.kernel import Kernel
from foretune.models import distinct_problems as problems
from foretune.models.targets import POWER_LIMIT, Target, measured_rows

TOO_FAST = 30.0  # minimum factor below the roofline that is impossible: caches give at most ten
MAX_DROPPED_SHARE = 0.05
"""Maximum share of impossible rows that are dropped; if there are more, a warning asks."""
TOO_SLOW = 500.0  # if half of all runs are this factor above the roofline, the unit is off by 1000
LONG_MS = 1.0  # minimum roofline time of checked runs; shorter ones are mostly overhead
MAX_LISTED_ROWS = 5  # rows named in a message
ASK = "are these milliseconds, and is the device correct?"
MIN_ROWS = 20  # minimum rows to show a pattern


def drop_implausible(family: Family | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Drop the few rows that are faster than their device allows, and the power of idle boards.

    Warns (`DataWarning`) about them, by row index. Rows are kept if many are too fast, or most of
    the long ones are far above the roofline; then the warning asks for their unit.
    """
    return _drop_idle_power(family, _drop_impossible_times(family, runs))


def _drop_impossible_times(family: Family | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Drop times below the roofline, if few; ask about the unit otherwise."""
    timed = measured_rows("time_ms", runs, renumber=False)
    if timed.empty:
        return runs
    time_ms, roofline_ms = timed["time_ms"].to_numpy(float), row_roofline_ms(family, timed)
    ratio = time_ms / np.where(np.isfinite(roofline_ms), roofline_ms, np.nan)
    implausible = timed.index[ratio < 1.0 / TOO_FAST]
    many = len(implausible) >= MAX_DROPPED_SHARE * len(ratio)
    if len(implausible):
        _warn(
            f"{format_rows(implausible)} of {len(ratio):,} runs: over {TOO_FAST:.0f} times faster "
            f"than their device allows ({runs['time_ms'][implausible[0]]:g} ms is the first): "
            + (ASK if many else "left out")
        )
    long_ratio = ratio[roofline_ms > LONG_MS]
    if len(long_ratio) >= 5 and np.median(long_ratio) > TOO_SLOW:
        _warn(f"half of the long runs are over {TOO_SLOW:g} times slower than the roofline: {ASK}")
    return runs if many else runs.drop(index=implausible)


def _drop_idle_power(family: Family | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Empty the power of idle rows; if few others remain, of all rows."""
    metered = measured_rows("power_w", runs, renumber=False)
    idle = metered.index[is_idle_power(family, metered)]
    if not len(idle):
        return runs
    others = len(metered) - len(idle)
    emptied = runs.index.isin(idle) | (others < MIN_ROWS)
    _warn(
        f"power_w of {format_rows(idle)} ({len(idle):,} of {len(metered):,}) is that of an idle "
        f"board ({runs['power_w'][idle[0]]:g} W is the first) under load: was it sampled after the "
        "kernel? Left out"
        + (f", and power is not learned: {others} other rows are too few" * (others < MIN_ROWS))
    )
    columns = [c for c in ("power_w", "energy_mj") if c in runs]
    kept = runs.assign(**{c: runs[c].mask(emptied) for c in columns})
    return kept[~emptied | runs["time_ms"].notna() | (runs["status"] != "ok")]


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=5)  # at the call of `Predictor.fit`


IDLE_SHARE = 0.06
"""Maximum power at idle, as a share of the way from the device's lowest power to its limit."""
MAX_LOWEST_SHARE = 0.4  # if the lowest power is a larger share of the limit, no row counts as idle
BUSY_SHARE = 0.2  # minimum share of the roofline's rate that no idle board reaches
SHORT_MS = 0.03  # during shorter launches, the board idles between launches, so its power is low
IDLE_OVERHEAD_MS, EFFICIENCY = 0.05, 0.5
"""Assumptions for rows without a time: launch overhead, and share of the roofline's rate."""


def is_idle_power(family: Family | None, metered: pd.DataFrame) -> np.ndarray:
    """Return which rows have the ``power_w`` of an idle board although they are busy.

    A kernel with little work may draw nearly the lowest power of its device. If it reached a good
    share of the roofline, the power was sampled after the kernel had ended. If the power limit is
    unknown, the highest power of the device is used. Without a ``family``, no row is idle.
    """
    if family is None or metered.empty:
        return np.zeros(len(metered), dtype=bool)
    power_w, device = metered["power_w"].astype(float), metered["device"].astype(str)
    lowest = power_w.groupby(device).transform("min")
    limit = power_w.groupby(device).transform("max")
    if (column := f"device.{POWER_LIMIT}") in metered:
        limit = metered[column].fillna(limit)
    idle = (power_w <= lowest + IDLE_SHARE * (limit - lowest)) & (lowest < MAX_LOWEST_SHARE * limit)
    short = metered["time_ms"].astype(float) < SHORT_MS
    return np.asarray(idle & ~short & (_busy_share(family, metered) > BUSY_SHARE))


def _busy_share(family: Family, rows: pd.DataFrame) -> np.ndarray:
    """Return the share of the roofline's rate that rows reach, NaN if unknown.

    Without peak rates, the highest rates on the device are used.
    """
    roofline_ms, time_ms = row_roofline_ms(family, rows), rows["time_ms"].to_numpy(float)
    assumed_ms = IDLE_OVERHEAD_MS + roofline_ms / EFFICIENCY
    share = roofline_ms / np.where(np.isnan(time_ms), assumed_ms, time_ms)
    cost = row_cost(family, rows)
    rates = pd.DataFrame({"flops": cost.flops / time_ms, "bytes": cost.bytes_moved / time_ms})
    highest = rates.groupby(rows["device"].astype(str).to_numpy()).transform("max")
    return np.where(np.isnan(share), (rates / highest).max(axis=1), share)


def format_rows(rows: "pd.Index | np.ndarray") -> str:
    """Return the first few of ``rows`` and the number of others, as text."""
    first = ", ".join(map(str, rows[:MAX_LISTED_ROWS]))
    more = f" and {len(rows) - MAX_LISTED_ROWS:,} more" if len(rows) > MAX_LISTED_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {first}{more}"


MAX_ROWS = 2000  # rows sampled from a table
NEIGHBORS = 9  # neighbors whose median estimates a row; outvotes wrong ones
OTHER_UNIT_FACTORS, GAP_FACTORS = (300.0, 3000.0), (30.0, 300.0)
"""Factors between units that differ by 1000, and a gap that no such unit causes."""
FAR_FACTOR = 10.0  # factor that rows in another unit are off at least, before neighbors are asked
MIN_OUTLIERS = 3
MAX_CATEGORIES = 20  # texts of a column that are told apart
OVERHEAD_MS = 0.006  # overhead of a launch, relevant for the smallest work
LEAK_ERROR = 2e-3  # minimum log error of any column known before the measurement
LEAK_ERROR_RATIO = 0.1  # ratio of the errors with and without a leaking column
GROUPS = ("problem", "config", "device")
FORMAT_SUFFIXES = (".format", "kv_format", ".dtype", "mat1_dtype", "mat2_dtype")
"""Suffixes of number-format columns."""


def warn_about_data(
    family: Family | None, runs: pd.DataFrame, targets: Iterable[Target], extra: Sequence[str] = ()
) -> None:
    """Warn (`DataWarning`) about suspect rows and columns, by row index.

    ``extra`` are additional column groups that are used.
    """
    found = [*_unknown_formats(family, runs), *_without_roofline(family, runs)]
    for target in targets:
        rows = measured_rows(target, runs, renumber=False)
        if len(rows) >= MIN_ROWS:
            found += [*_mixed_units(family, rows, target), *_leaks(rows, target, extra)]
    found += _near_duplicates(runs)
    for text in found:
        warnings.warn(text, DataWarning, stacklevel=3)


def _unknown_formats(family: Family | None, runs: pd.DataFrame) -> Iterator[str]:
    columns = [*columns_of(runs, "problem"), *columns_of(runs, "config")]
    if family is None or isinstance(family, Kernel):  # a kernel knows its formats
        return
    for column in columns:
        if not column.endswith(FORMAT_SUFFIXES):
            continue
        values = as_array(runs[column])
        texts = set(values.tolist()) if values.dtype.kind == "U" else set()
        for name in sorted(texts - {*FORMATS, ""}):
            rows = runs.index[values == name]
            yield f"{column}={name} is an unknown format: {format_rows(rows)} count as 16 bits"


def _without_roofline(family: Family | None, runs: pd.DataFrame) -> Iterator[str]:
    unknown = np.isnan(row_roofline_ms(family, with_rates(family, Rows(runs))))
    if unknown.any() and not unknown.all():
        yield f"{format_rows(runs.index[unknown])} have no roofline: they lack a size"


def _mixed_units(family: Family | None, rows: pd.DataFrame, target: Target) -> Iterator[str]:
    """Yield the rows that are off by about 1000 from similar rows, if few or none are in between.

    The effect of sizes is removed first, because neighbors may be far away in a table of few
    problems. After that, similar rows are all rows or, if these scatter, the neighbors.
    """
    y, X = np.log(rows[target].to_numpy(float)), _standardized_columns(rows)
    sampled = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS]
    terms = np.column_stack([np.ones(len(y)), X])
    explained = terms @ np.linalg.lstsq(terms[sampled], y[sampled], rcond=None)[0]
    if target == "time_ms":
        roofline = np.log(row_roofline_ms(family, rows) + OVERHEAD_MS)
        if np.isfinite(roofline).sum() > len(y) / 2:
            explained = roofline
    deviations = np.nan_to_num(y - explained - np.nanmedian(y - explained))
    outliers = _outliers(deviations)
    if (
        not outliers.any()
        and _outliers(_neighbor_deviations(X, deviations, sampled, sampled)).any()
    ):
        far, near = np.flatnonzero(np.abs(deviations) > np.log(FAR_FACTOR)), np.zeros(len(y))
        near[far] = _neighbor_deviations(X, deviations, sampled, far)
        outliers = _outliers(near)
    if outliers.any():
        yield (
            f"{target} of {format_rows(rows.index[outliers])} is about 1000 times off similar "
            "runs: is their unit different?"
        )


def _outliers(deviations: np.ndarray) -> np.ndarray:
    """Return which log deviations indicate another unit: several, after a gap."""
    for sign in (1.0, -1.0):
        outliers, between = (
            (sign * deviations >= np.log(low)) & (sign * deviations < np.log(high))
            for low, high in (OTHER_UNIT_FACTORS, GAP_FACTORS)
        )
        if outliers.sum() >= MIN_OUTLIERS and outliers.sum() > 2 * between.sum():
            return np.asarray(outliers)
    return np.zeros(len(deviations), dtype=bool)


def _neighbor_deviations(
    X: np.ndarray, y: np.ndarray, known: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Return the deviation of ``y`` of rows ``wanted`` from the median of their known neighbors."""
    deviations = []
    for chunk in np.array_split(wanted, -(-len(wanted) // MAX_ROWS)):
        distances = (X[known] ** 2).sum(1) - 2.0 * X[chunk] @ X[known].T
        distances[chunk[:, None] == known] = np.inf  # a row is not its neighbor
        nearest = np.argpartition(distances, NEIGHBORS, axis=1)[:, :NEIGHBORS]
        deviations.append(y[chunk] - np.median(y[known][nearest], axis=1))
    return np.concatenate(deviations)


def _standardized_columns(rows: pd.DataFrame) -> np.ndarray:
    """Return standardized numbers (positive ones as log2) and indicators of text."""
    columns = [np.zeros(len(rows))]
    for column in [c for group in GROUPS for c in columns_of(rows, group)]:
        values = as_array(rows[column])
        if values.dtype.kind == "U":
            codes = pd.factorize(values)[0]
            columns += [2.0 * (codes == c) for c in range(min(codes.max() + 1, MAX_CATEGORIES))]
        elif np.ptp(values := np.nan_to_num(values)) > 0:
            values = np.log2(values) if (values > 0).all() else values
            columns.append((values - values.mean()) / (values.std() or 1.0))
    return np.column_stack(columns).astype(np.float32)


def _leaks(rows: pd.DataFrame, target: Target, extra: Sequence[str]) -> Iterator[str]:
    """Yield the columns that predict the target too closely, so are probably computed from it.

    They have nearly as many distinct values, and the target is a smooth function of them, or a
    product of powers of them and of sizes.
    """
    y = np.log(rows[target].to_numpy(float))
    numbers = {c: as_array(rows[c]) for group in (*GROUPS, *extra) for c in columns_of(rows, group)}
    numbers = {c: v for c, v in numbers.items() if v.dtype.kind != "U" and np.isfinite(v).all()}
    min_distinct = 0.5 * len(np.unique(y))
    suspects = {
        c: v
        for c, v in numbers.items()
        if len(np.unique(v)) >= max(min_distinct, MIN_ROWS) and not _look_like_sizes(v)
    }
    sizes = {c: np.log(v) for c, v in numbers.items() if c not in suspects and (v > 0).all()}
    sampled = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS]
    for column, values in suspects.items():
        terms = [*sizes.values(), *([np.log(values)] if (values > 0).all() else [])]
        X = np.column_stack([np.ones(len(y)), *terms])[sampled]
        left, without = (
            y[sampled] - terms @ np.linalg.lstsq(terms, y[sampled], rcond=None)[0]
            for terms in (X, X[:, : 1 + len(sizes)])
        )
        order = np.argsort(values[sampled])
        interpolation_errors = _interpolation_errors(values[sampled][order], y[sampled][order])
        closest = min(np.median(np.abs(left)), np.median(np.abs(interpolation_errors)))
        if closest < min(LEAK_ERROR * np.std(y), LEAK_ERROR_RATIO * np.median(np.abs(without))):
            yield (
                f"{column} predicts {target} suspiciously well: if it was computed from {target}, "
                "drop the column, because new runs do not have it"
            )


def _interpolation_errors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the error of every other ``y`` from the line between its neighbors."""
    distinct = np.r_[True, np.diff(x) > 0]
    x, y = x[distinct], y[distinct]
    return np.asarray(y[1::2] - np.interp(x[1::2], x[::2], y[::2]))


def _near_duplicates(runs: pd.DataFrame) -> Iterator[str]:
    distinct, exact = problems.distinct_problems(runs), problems.exact_problems(runs)
    count, exact_count = int(distinct.max(initial=-1)) + 1, int(exact.max(initial=-1)) + 1
    is_small = count < problems.MIN_PROBLEMS
    repeated = problems.MANY_DUPLICATES if is_small else problems.MOSTLY_DUPLICATES
    if exact_count >= max(MIN_ROWS, repeated * count):
        _, first = np.unique(exact, return_index=True)
        first.sort()
        copies = first[pd.Series(distinct[first]).duplicated().to_numpy()]
        yield (
            f"only {count:,} of {exact_count:,} problems differ, the others are near-duplicates "
            f"({format_rows(runs.index[copies])}), which teach little about new problems"
        )


def _look_like_sizes(values: np.ndarray) -> bool:
    """Return whether the numbers have a common divisor, like chosen sizes and unlike results."""
    above_one = values[values > 1]
    if not len(above_one) or (values != np.round(values)).any() or above_one.max() >= 2**62:
        return False
    return bool(np.gcd.reduce(above_one.astype(np.int64)) > 1)

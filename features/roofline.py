"""Roofline time of run-table rows: a lower bound from work and device rates, known or assumed."""

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.plain_tables import UNNAMED
from foretune.datasets.schema import columns_of
from foretune.device import (
    GENERIC_CPU,
    GENERIC_GPU,
    SPECS,
    find_device_or_none,
    generic_device,
    roofline_terms_ms,
)
from foretune.errors import DataWarning, PredictorError
from foretune.family import Cost, Family
from foretune.features.arrays import Rows, as_array
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.readings import RenamedFamily

MIN_MS = 1e-9
"""Lower bound of each limit's time, so that logarithms are finite."""
RATES = ("device.memory_gbps", *(f"device.{s}" for s in SPECS if s.endswith("_gflops")))
ASKED_RATES = ("fp32_gflops", "fp16_gflops", "memory_gbps")
"""Rates that a warning asks for."""


def row_cost(family: Family, rows: pd.DataFrame | Rows) -> Cost:
    """Return the work of every row, as arrays of ``len(rows)``.

    Raises PredictorError if a column that the cost depends on is missing.
    """
    known = Rows.from_table(rows)
    return known.memoized(("cost", family.name), lambda: _cost(family, known))


def row_limits_ms(family: Family | None, rows: pd.DataFrame | Rows) -> np.ndarray:
    """Return compute time and memory time of every row at its ``device.*`` rates, in ms (rows, 2).

    An unknown rate is no limit. If both are unknown, or there is no family, both times are NaN.
    """
    if family is None:
        return np.full((len(rows), 2), np.nan)
    known = Rows.from_table(rows)
    return known.memoized(("limits", family.name), lambda: _limits_ms(family, known))


def row_parts_ms(family: Family | None, rows: pd.DataFrame | Rows) -> np.ndarray:
    """Return the time of every row by each limit alone, in ms (rows, parts).

    The limits are those of the family's launch model if the device's rates are known, else those of
    `row_limits_ms`.
    """
    limits = row_limits_ms(family, rows)
    if family is None:
        return limits
    known = Rows.from_table(rows)
    return known.memoized(("parts", family.name), lambda: _parts_ms(family, known, limits))


def row_roofline_ms(family: Family | None, rows: pd.DataFrame | Rows) -> np.ndarray:
    """Return the roofline time of every row in ms, NaN if unknown."""
    return np.asarray(row_limits_ms(family, rows).max(axis=-1))


def quantities(family: Family, rows: Rows, method: str) -> dict[str, Any]:
    """Return what `Family.cost`, `launch_parts_ms` or `derived` says of rows.

    Raises PredictorError if a column is missing or holds text.
    """
    groups = ("problem", "config") if method == "cost" else ("problem", "config", "device")
    arguments: list[Mapping[str, Any]] = [rows.group(group) for group in groups]
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            result = getattr(family, method)(*arguments)
    except KeyError as e:
        raise PredictorError(f"the runs lack {e}, which kernel {family.name!r} needs") from e
    except TypeError as e:
        raise PredictorError(f"the runs hold text where {family.name!r} needs a number") from e
    return vars(result) if isinstance(result, Cost) else result


def _cost(family: Family, rows: Rows) -> Cost:
    cost = Cost(**quantities(family, rows, "cost"))
    n = len(rows)
    return Cost(
        flops=np.broadcast_to(np.asarray(cost.flops, dtype=float), n),
        bytes_moved=np.broadcast_to(np.asarray(cost.bytes_moved, dtype=float), n),
        dtype=cost.dtype if isinstance(cost.dtype, str) else np.broadcast_to(cost.dtype, n),
    )


def _limits_ms(family: Family, rows: Rows) -> np.ndarray:
    terms = roofline_terms_ms(row_cost(family, rows), rows.group("device"))
    limits = np.array(terms).T  # one row per run
    is_known = np.isfinite(limits) & (limits > 0)
    if is_known.all():
        return limits
    limits = np.where(is_known, limits, MIN_MS)
    limits[~is_known.any(axis=-1)] = np.nan
    return limits


def part_names(family: Family | None, rows: Rows) -> tuple[str, ...]:
    """Return the names of the columns of `row_parts_ms`."""
    parts = quantities(family, rows, "launch_parts_ms") if family else ()
    return tuple(parts) or ("compute", "memory")


def _parts_ms(family: Family, rows: Rows, limits: np.ndarray) -> np.ndarray:
    parts = quantities(family, rows, "launch_parts_ms")
    if not parts:
        return limits
    columns = [np.broadcast_to(part, len(rows)) for part in parts.values()]
    times = np.stack(columns, axis=-1)
    known_times = np.where(np.isfinite(times) & (times > 0), times, MIN_MS)
    has_limits = np.isfinite(limits).all(axis=-1)
    return np.where(has_limits[..., None], known_times, np.nan)


def text_columns(rows: pd.DataFrame) -> list[str]:
    """Return the text columns of the configuration that vary.

    The device is excluded, so that calibration carries over to other devices.
    """
    varying = []
    for column in columns_of(rows, "config"):
        values = as_array(rows[column])
        if values.dtype.kind == "U" and (values != values[:1]).any():
            varying.append(column)
    return varying


def with_rates(family: Family | None, rows: Rows) -> Rows:
    """Return ``rows`` with a rate for every device; without a family, unchanged.

    A row without any rate gets the specs of the known device of its name, else those of a generic
    CPU or GPU with a `DataWarning`. Values that a row has are kept. Unnamed devices stay without
    rates if the cost is the user's. If the family was only guessed from names, generic rates need
    no warning: nobody said that it has a roofline.
    """
    if family is None or "device" not in rows:
        return rows
    may_be_unnamed = isinstance(family, UserDefinedCost)
    is_guessed = isinstance(family, RenamedFamily)
    unknown = rows.memoized(("unknown", may_be_unnamed), lambda: _unknown(rows, may_be_unnamed))
    if not unknown.any():
        return rows
    return rows.memoized(
        ("with rates", may_be_unnamed), lambda: _fill(rows, unknown, warns=not is_guessed)
    )


def _unknown(rows: Rows, may_be_unnamed: bool) -> np.ndarray:
    """Return which rows have no rate."""
    unknown = np.ones(len(rows), dtype=bool)
    for column in filter(rows.__contains__, RATES):
        unknown &= np.isnan(rows[column])
    if may_be_unnamed and unknown.any():
        unknown &= ~rows.text_masks("device", [UNNAMED])[0]
    return unknown


def _fill(rows: Rows, unknown: np.ndarray, *, warns: bool) -> Rows:
    """Return rows with specs of known or generic devices where no rate is known."""
    names, codes = rows.distinct("device")
    devices = {}
    for name in sorted({str(names[code]) for code in codes[unknown]}):
        devices[name] = find_device_or_none(name) or generic_device(name)

    filled_columns = {}
    for spec in SPECS:
        column = f"device.{spec}"
        own_values: Any = np.nan
        if column in rows:
            own_values = rows[column]
        # The device's value by its code; NaN for devices whose rows have a rate.
        value_of_code = [
            devices[name].specs.get(spec, np.nan) if name in devices else np.nan for name in names
        ]
        is_missing = unknown & np.isnan(own_values)
        filled = np.where(is_missing, np.array(value_of_code)[codes], own_values)
        if not np.isnan(filled).all():
            filled_columns[column] = filled

    for name, device in devices.items():
        if warns and device in (GENERIC_CPU, GENERIC_GPU):
            rates = ", ".join(f"device.{spec}" for spec in ASKED_RATES if spec in device.specs)
            _warn_once(
                f"the rates of {name!r} are unknown; it counts as a {device.name}: give {rates}"
            )
    return rows.with_columns(filled_columns)


@cache  # Python's own record of warnings is lost whenever some are silenced
def _warn_once(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=2)

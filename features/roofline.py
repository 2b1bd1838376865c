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
from foretune.features.readings import ReadFamily

MIN_MS = 1e-9  # lower bound of each limit's time, so that logarithms are finite


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
    columns: list[Mapping[str, Any]] = [rows.group(group) for group in groups]
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = getattr(family, method)(*columns)
    except KeyError as e:
        raise PredictorError(f"the runs lack {e}, which kernel {family.name!r} needs") from e
    except TypeError as e:
        raise PredictorError(f"the runs hold text where {family.name!r} needs a number") from e
    return vars(found) if isinstance(found, Cost) else found


def _cost(family: Family, rows: Rows) -> Cost:
    cost = Cost(**quantities(family, rows, "cost"))
    n = len(rows)
    return Cost(
        flops=np.broadcast_to(np.asarray(cost.flops, dtype=float), n),
        bytes_moved=np.broadcast_to(np.asarray(cost.bytes_moved, dtype=float), n),
        dtype=cost.dtype if isinstance(cost.dtype, str) else np.broadcast_to(cost.dtype, n),
    )


def _limits_ms(family: Family, rows: Rows) -> np.ndarray:
    limits = np.array(roofline_terms_ms(row_cost(family, rows), rows.group("device"))).T
    known = np.isfinite(limits) & (limits > 0)
    if not known.all():
        limits = np.where(known, limits, MIN_MS)
        limits[~known.any(axis=-1)] = np.nan
    return limits


def part_names(family: Family | None, rows: Rows) -> tuple[str, ...]:
    """Return the names of the columns of `row_parts_ms`."""
    parts = quantities(family, rows, "launch_parts_ms") if family else ()
    return tuple(parts) or ("compute", "memory")


def _parts_ms(family: Family, rows: Rows, limits: np.ndarray) -> np.ndarray:
    if not (parts := quantities(family, rows, "launch_parts_ms")):
        return limits
    found = np.stack([np.broadcast_to(part, len(rows)) for part in parts.values()], axis=-1)
    found = np.where(np.isfinite(found) & (found > 0), found, MIN_MS)
    return np.where(np.isfinite(limits).all(axis=-1)[..., None], found, np.nan)


def text_columns(rows: pd.DataFrame) -> list[str]:
    """Return the text columns of the configuration that vary.

    The device is excluded, so that calibration carries over to other devices.
    """
    configs = {c: as_array(rows[c]) for c in columns_of(rows, "config")}
    texts = [c for c, values in configs.items() if values.dtype.kind == "U"]
    return [c for c in texts if (configs[c] != configs[c][:1]).any()]


RATES = ("device.memory_gbps", *(f"device.{s}" for s in SPECS if s.endswith("_gflops")))


def with_rates(family: Family | None, rows: Rows) -> Rows:
    """Return ``rows`` with a rate for every device; without a family, unchanged.

    A row without any rate gets the specs of the known device of its name, else those of a generic
    CPU or GPU with a `DataWarning`. Values that a row has are kept. Unnamed devices stay without
    rates if the cost is the user's. If the family was only read from names, generic rates need no
    warning: nobody said that it has a roofline.
    """
    if family is None or "device" not in rows:
        return rows
    may_be_unnamed = isinstance(family, UserDefinedCost)
    is_read = isinstance(family, ReadFamily)
    unknown = rows.memoized(("unknown", may_be_unnamed), lambda: _unknown(rows, may_be_unnamed))
    if not unknown.any():
        return rows
    return rows.memoized(
        ("with rates", may_be_unnamed), lambda: _fill(rows, unknown, warns=not is_read)
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
    names, codes = rows.distinct("device")
    present = sorted({str(names[code]) for code in codes[unknown]})
    devices = {name: find_device_or_none(name) or generic_device(name) for name in present}
    columns = {}
    for spec in SPECS:
        values = [devices[n].specs.get(spec, np.nan) if n in devices else np.nan for n in names]
        known = rows[column] if (column := f"device.{spec}") in rows else np.nan
        filled = np.where(unknown & np.isnan(known), np.array(values)[codes], known)
        if not np.isnan(filled).all():
            columns[column] = filled
    for name, device in devices.items():
        if warns and device in (GENERIC_CPU, GENERIC_GPU):
            asked = ("fp32_gflops", "fp16_gflops", "memory_gbps")
            rates = ", ".join(f"device.{spec}" for spec in asked if spec in device.specs)
            text = f"the rates of {name!r} are unknown; it counts as a {device.name}: give {rates}"
            _warn_once(text)
    return rows.with_columns(columns)


@cache  # Python's own record of warnings is lost whenever some are silenced
def _warn_once(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=2)

"""Rates of devices that a run table does not describe."""

import warnings
from functools import cache
from typing import Any

import numpy as np

from foretune.datasets.importers.generic import UNNAMED
from foretune.device import GENERIC_CPU, GENERIC_GPU, SPECS, find_device_or_none, generic_device
from foretune.errors import DataWarning
from foretune.family import Family
from foretune.features.arrays import Rows, SingleRow
from foretune.features.families.user_defined import UserDefinedCost

RATES = ("device.memory_gbps", *(f"device.{s}" for s in SPECS if s.endswith("_gflops")))


def with_rates(family: Family | None, rows: Rows) -> Rows:
    """Return ``rows`` with a rate for every device; without a family, unchanged.

    A row without any rate gets the specs of the known device of its name, else those of a generic
    CPU or GPU, and a `DataWarning` says so. Values that a row has are kept. A user's own cost on
    devices without a name stays on the plain scale.
    """
    if family is None or "device" not in rows:
        return rows
    may_be_unnamed = isinstance(family, UserDefinedCost)
    unknown = rows.memoized(("unknown", may_be_unnamed), lambda: _unknown(rows, may_be_unnamed))
    if not unknown.any():
        return rows
    return rows.memoized(("with rates", may_be_unnamed), lambda: _fill(rows, unknown))


def _unknown(rows: Rows, may_be_unnamed: bool) -> Any:
    """Return which rows have no rate."""
    unknown: Any
    if isinstance(rows, SingleRow):
        unknown = np.bool_(not any(c in rows and rows[c] == rows[c] for c in RATES))
    else:
        unknown = np.ones(len(rows), dtype=bool)
        for column in filter(rows.__contains__, RATES):
            unknown &= np.isnan(rows[column])
    if may_be_unnamed and unknown.any():
        unknown = unknown & ~np.asarray(rows.text_masks("device", [UNNAMED])[0])
    return unknown


def _fill(rows: Rows, unknown: np.ndarray) -> Rows:
    names, codes = rows.distinct("device")
    present = sorted({str(names[code]) for code in codes[np.atleast_1d(unknown)]})
    devices = {name: find_device_or_none(name) or generic_device(name) for name in present}
    position = 0 if isinstance(rows, SingleRow) else codes
    columns = {}
    for spec in SPECS:
        values = [devices[n].specs.get(spec, np.nan) if n in devices else np.nan for n in names]
        known = rows[column] if (column := f"device.{spec}") in rows else np.nan
        filled = np.where(unknown & np.isnan(known), np.array(values)[position], known)
        if not np.isnan(filled).all():
            columns[column] = filled[()]
    for name, device in devices.items():
        if device in (GENERIC_CPU, GENERIC_GPU):
            asked = ("fp32_gflops", "fp16_gflops", "memory_gbps")
            rates = ", ".join(f"device.{spec}" for spec in asked if spec in device.specs)
            text = f"the rates of {name!r} are unknown, it counts as a {device.name}: give {rates}"
            _warn_once(text)
    return rows.with_columns(columns)


@cache  # Python's own record of warnings is lost whenever some are silenced
def _warn_once(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=2)

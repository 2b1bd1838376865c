"""Adds device specs to run tables as ``device.*`` columns."""

import numpy as np
import pandas as pd

from foretune.device import SPECS, Device, find_device_or_none, generic_device


def with_specs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with the specs of every device in the spec table.

    Values already in a row are kept, e.g. ``device.power_limit_w`` of a board with a lower limit.
    Unknown devices get NaN. A spec without any value gets no column.
    """
    names = runs["device"].astype("category").cat
    found = [find_device_or_none(str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    columns = {}
    for spec in SPECS:
        # the last entry is for rows without a device (code -1)
        values = np.array([d.specs.get(spec, np.nan) if d else np.nan for d in found] + [np.nan])
        if np.isnan(values).all():
            continue
        column, filled = f"device.{spec}", values[codes]
        if column in runs:
            row_values = runs[column].to_numpy(dtype=float)
            filled = np.where(np.isnan(row_values), filled, row_values)
        columns[column] = filled
    return runs.assign(**columns)


def with_specs_of(runs: pd.DataFrame, device: Device | None) -> pd.DataFrame:
    """Return ``runs`` with the specs of ``device`` in every row."""
    specs = {f"device.{name}": value for name, value in device.specs.items()} if device else {}
    others = [c for c in runs if c not in specs]  # `assign` is slow: it adds one column at a time
    return pd.concat([runs[others], pd.DataFrame(specs, index=runs.index)], axis=1)


def device_of(runs: pd.DataFrame) -> Device:
    """Return the one device of ``runs``, its specs completed from the spec table.

    An unknown device is a CPU if it has ``vector_bits`` or is called like one, else a GPU.
    """
    name = str(runs["device"].iloc[0])
    known = find_device_or_none(name)
    columns = [c for c in with_specs(runs.head(1)) if c.startswith("device.")]
    row = with_specs(runs.head(1))[columns].astype(float).iloc[0].dropna()
    specs = {c.removeprefix("device."): float(v) for c, v in row.items()}
    if known:
        return Device(name, known.kind, known.architecture, specs, known.source)
    kind = "cpu" if "vector_bits" in specs else generic_device(name).kind
    return Device(name, kind, specs=specs, source="run table")

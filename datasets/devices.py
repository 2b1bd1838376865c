"""Device descriptors beside runs: the spec table's numbers as ``device.*`` columns."""

import numpy as np
import pandas as pd

from foretune.device import SPECS, Device, find_device_or_none


def with_specs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with the specs of every device that the spec table knows.

    What a row says itself (``device.power_limit_w`` of a board set lower, say) is kept; a spec
    that no device of the table has gets no column; rows of unknown devices get NaN.
    """
    names = runs["device"].astype("category").cat
    found = [find_device_or_none(str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    columns = {}
    for spec in SPECS:
        # Code -1, a row without a device, is the last.
        values = np.array([d.specs.get(spec, np.nan) if d else np.nan for d in found] + [np.nan])
        if np.isnan(values).all():
            continue
        column, filled = f"device.{spec}", values[codes]
        if column in runs:
            row_values = runs[column].to_numpy(dtype=float)
            filled = np.where(np.isnan(row_values), filled, row_values)
        columns[column] = filled
    return runs.assign(**columns)


def device_of(runs: pd.DataFrame) -> Device:
    """Return the one device of ``runs``: specs of its rows, completed by the spec table's.

    A device that the spec table lacks is a CPU if it has ``vector_bits``, else a GPU.
    """
    name = str(runs["device"].iloc[0])
    known = find_device_or_none(name)
    columns = [c for c in with_specs(runs.head(1)) if c.startswith("device.")]
    row = with_specs(runs.head(1))[columns].astype(float).iloc[0].dropna()
    specs = {c.removeprefix("device."): float(v) for c, v in row.items()}
    if known:
        return Device(name, known.kind, known.architecture, specs, known.source)
    return Device(name, "cpu" if "vector_bits" in specs else "gpu", specs=specs, source="run table")

"""Device descriptors beside runs: the spec table's numbers as ``device.*`` columns."""

import numpy as np
import pandas as pd

from foretune.device import SPECS, Device, find_device
from foretune.errors import UnknownName


def with_specs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with the specs of every device that the spec table knows.

    What a row says itself (``device.power_limit_w`` of a board set lower, say) is kept; a spec
    that no device of the table has gets no column; rows of unknown devices get NaN.
    """
    names = runs["device"].astype("category").cat
    found = [_known(str(name)) for name in names.categories]
    codes = names.codes.to_numpy()
    columns = {}
    for spec in SPECS:
        # Code -1, a row without a device, is the last.
        values = np.array([d.specs.get(spec, np.nan) if d else np.nan for d in found] + [np.nan])
        if np.isnan(values).all():
            continue
        column, filled = f"device.{spec}", values[codes]
        if column in runs:
            own = runs[column].to_numpy(dtype=float)
            filled = np.where(np.isnan(own), filled, own)
        columns[column] = filled
    return runs.assign(**columns)


def canonical_name(name: str) -> str:
    """Return the spec table's spelling of a device name, or ``name`` itself if it has none.

    Trademark signs and a trailing ``Graphics``, which Intel's driver adds, are ignored.
    """
    plain = name.replace("(R)", "").replace("(TM)", "").removesuffix(" Graphics")
    device = _known(" ".join(plain.split()))
    return device.name if device else name


def _known(name: str) -> Device | None:
    try:
        return find_device(name)
    except UnknownName:
        return None

"""The roofline time of every row: the least time its work can take on its device."""

import numpy as np
import pandas as pd

from foretune.device import roofline_ms
from foretune.errors import PredictorError
from foretune.features.arrays import group_arrays
from foretune.kernel import Cost, Kernel


def row_cost(kernel: Kernel, rows: pd.DataFrame) -> Cost:
    """Return the work of every row, as arrays of ``len(rows)``.

    Raises:
        PredictorError: a column that the kernel's cost depends on is missing.
    """
    try:
        cost = kernel.cost(group_arrays(rows, "problem"), group_arrays(rows, "config"))
    except KeyError as e:
        raise PredictorError(f"the runs lack {e}, which kernel {kernel.name!r} has") from e
    n = len(rows)
    return Cost(
        flops=np.broadcast_to(np.asarray(cost.flops, dtype=float), n),
        bytes_moved=np.broadcast_to(np.asarray(cost.bytes_moved, dtype=float), n),
        dtype=cost.dtype if isinstance(cost.dtype, str) else np.broadcast_to(cost.dtype, n),
    )


def row_roofline_ms(kernel: Kernel | None, rows: pd.DataFrame) -> np.ndarray:
    """Return the roofline time of every row in milliseconds, at its ``device.*`` rates.

    NaN where the kernel's cost or the device's rates are not known.
    """
    if kernel is None:
        return np.full(len(rows), np.nan)
    time_ms = np.asarray(roofline_ms(row_cost(kernel, rows), group_arrays(rows, "device")))
    return np.where(np.isfinite(time_ms) & (time_ms > 0), time_ms, np.nan)

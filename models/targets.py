"""Targets: the scale on which a quantity is learned, and the way back.

Runtime is learned as log(time / roofline time): what is left is how far a configuration stays from
what the hardware allows, which carries over to other sizes far better than milliseconds do. Power
is learned as log(watts). Energy is always power × time, never a third model.
"""

from typing import Literal, get_args

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.features import FeatureSet

Target = Literal["time_ms", "power_w"]
TARGETS: tuple[Target, ...] = get_args(Target)


def log_unit(target: Target, features: FeatureSet, runs: pd.DataFrame) -> np.ndarray:
    """Return the logarithm of what each row's target is measured against."""
    if target == "time_ms":
        return np.log(features.unit_ms(runs))
    return np.zeros(len(runs))


def usable_rows(target: Target, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can teach ``target``: successful ones that have it.

    Raises:
        PredictorError: there are fewer than five.
    """
    if target not in runs:
        raise PredictorError(f"the runs have no column {target!r}: nothing to learn from")
    rows = runs[(runs["status"] == "ok") & runs[target].notna()].reset_index(drop=True)
    if len(rows) < 5:
        raise PredictorError(
            f"only {len(rows)} successful runs with {target}: at least 5 are needed, 100 are better"
        )
    return rows


def present_targets(runs: pd.DataFrame) -> list[Target]:
    """Return the targets that ``runs`` can teach."""
    return [t for t in TARGETS if t in runs and int(runs[t].notna().sum()) >= 5]

"""Objectives for ranking configurations: products of powers of predicted time and power."""

import numpy as np
import pandas as pd

from foretune.errors import PredictorError, require_known

EXPONENTS = {
    "time": {"time_ms": 1},
    "power": {"power_w": 1},
    "energy": {"time_ms": 1, "power_w": 1},
    "edp": {"time_ms": 2, "power_w": 1},
}
"""Objective -> the exponents of time and power in it."""


def predicted_objective(predicted: pd.DataFrame, objective: str) -> pd.DataFrame:
    """Return ``value``, ``low`` and ``high`` of an objective per row, in ms, W, mJ or mJ·ms.

    ``predicted`` is from `Predictor.predict` or `Predictor.predict_space`. Errors of time and
    power are taken as independent.
    """
    require_known("objective", objective, EXPONENTS)
    logs = []
    for target, exponent in EXPONENTS[objective].items():
        if target not in predicted:
            what = "power" if target == "power_w" else "time"
            raise PredictorError(
                f"the predictor has not learned {what}, which objective {objective!r} needs: "
                f"train it on runs with {target}"
            )
        columns = [target, f"{target}_low", f"{target}_high"]
        logs.append(exponent * np.log(predicted[columns].to_numpy().T))
    value, low, high = np.exp(product_interval(*logs))
    return pd.DataFrame({"value": value, "low": low, "high": high}, index=predicted.index)


def product_interval(*logs: np.ndarray) -> np.ndarray:
    """Return the logs of a product and of its interval's ends, from those of its factors.

    Each is an array (3, rows): value, low, high. The factors' errors are taken as independent, so
    the squares of their half-widths add up.
    """
    first, *others = logs
    total = first
    half_widths = first[1:] - first[0]
    for factor in others:
        total = total + factor
        half_widths = np.hypot(half_widths, factor[1:] - factor[0])
    value = total[0]
    below, above = np.abs(half_widths)
    return np.array([value, value - below, value + above])

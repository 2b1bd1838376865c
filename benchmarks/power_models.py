"""Models of operators' power, as shares of the board's limit: for `plan_power.py`.

All but the shipped form are there to be compared with.
"""

from collections.abc import Callable
from dataclasses import astuple, fields

import numpy as np
import pandas as pd
from power_records import USED
from scipy.optimize import least_squares

from foretune.plan.cost.kinds import KINDS
from foretune.plan.cost.power import PowerModel, PowerModels

OUTLIER_SCALE = 0.05
"""Log error beyond which a measurement is down-weighted; several percent of the recorded powers
belong to other operators."""
LOWER_BOUNDS = (0.0, 0.2, 0.0, 0.2)
UPPER_BOUNDS = (6.0, 3.0, 6.0, 3.0)
INITIAL_VALUES = ((0.8, 0.8, 0.6, 0.8), (0.3, 0.5, 0.3, 0.5), (1.0, 0.5, 0.1, 1.0))
"""Of the four values of `PowerModel`."""
MAX_FITTED_ROWS = 20_000
MIN_SHARE = 0.05
"""Smallest share of the limit that the linear model predicts."""
MIN_USE = 1e-5
"""Smallest use, for logarithms."""
N_NEIGHBORS = 32


def fit_form(used: np.ndarray, awake: np.ndarray | float, measured: np.ndarray) -> PowerModel:
    """Return the robust fit to ``measured`` shares of the limit."""

    def log_errors(values: np.ndarray) -> np.ndarray:
        return np.log(PowerModel(*values).share(used, awake) / measured)

    fits = [
        least_squares(
            log_errors,
            start,
            bounds=(LOWER_BOUNDS, UPPER_BOUNDS),
            loss="cauchy",
            f_scale=OUTLIER_SCALE,
        )
        for start in INITIAL_VALUES
    ]
    best = min(fits, key=lambda fit: fit.cost)
    return PowerModel(*best.x.tolist())


def fit_forms(rows: pd.DataFrame) -> dict[str, PowerModel]:
    """Return the form of each system's rows."""
    forms = {}
    for system, of_system in rows.groupby("system"):
        n_fitted = min(MAX_FITTED_ROWS, len(of_system))
        drawn = np.random.default_rng(0).choice(len(of_system), n_fitted, replace=False)
        fitted = of_system.iloc[drawn]
        forms[str(system)] = fit_form(
            used=fitted[USED].to_numpy(),
            awake=fitted["awake"].to_numpy(),
            measured=fitted["share"].to_numpy(),
        )
    return forms


def csv_lines(models: PowerModels) -> list[str]:
    """Return power models as CSV lines that `shipped_models` reads."""
    rows = [["kernel", "system", *(field.name for field in fields(PowerModel))]]
    for kernel, form_of_system in models.items():
        for system, form in form_of_system.items():
            values = [f"{value:.3f}" for value in astuple(form)]
            rows.append([kernel, system, *values])
    return [",".join(row) for row in rows]


def log_use(rows: pd.DataFrame) -> np.ndarray:
    """Return the logarithms of the shares in use (rows, 2)."""
    return np.log(np.maximum(rows[USED].to_numpy(), MIN_USE))


def _limit(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    return np.ones(len(test))


def _linear(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Awake power plus a multiple of each use, by relative least squares."""
    terms = train[USED].assign(awake=1.0).to_numpy()
    relative = terms / train["share"].to_numpy()[:, None]
    coefficients = np.linalg.lstsq(relative, np.ones(len(relative)), rcond=None)[0]
    predicted = test[USED].assign(awake=1.0).to_numpy() @ coefficients
    return np.clip(predicted, MIN_SHARE, 1.0)


def _by_form(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """The shipped form; a system without rows gets the mean of all systems' forms."""
    forms = fit_forms(train)
    shares = pd.Series(np.nan, index=test.index)
    for system, of_system in test.groupby("system"):
        used_forms = [forms[system]] if system in forms else list(forms.values())
        used = of_system[USED].to_numpy()
        awake = of_system["awake"].to_numpy()
        predicted = [form.share(used, awake) for form in used_forms]
        shares[of_system.index] = np.mean(predicted, axis=0)
    return shares.to_numpy()


def _neighbors(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    from sklearn.neighbors import KNeighborsRegressor

    model = KNeighborsRegressor(N_NEIGHBORS, weights="distance")
    model.fit(log_use(train), np.log(train["share"]))
    return np.exp(model.predict(log_use(test)))


def _boosted(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    from xgboost import XGBRegressor

    model = XGBRegressor(n_estimators=200, max_depth=6, learning_rate=0.1, subsample=0.8, n_jobs=1)
    model.fit(_sizes_and_use(train), np.log(train["share"]))
    return np.exp(model.predict(_sizes_and_use(test)))


def _sizes_and_use(rows: pd.DataFrame) -> np.ndarray:
    kind = KINDS[str(rows["kernel"].iloc[0])]
    is_bf16 = rows["config.format"].eq("bf16").to_numpy(dtype=float)
    return np.column_stack([kind.coordinates(rows), is_bf16, log_use(rows)])


MODELS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], np.ndarray]] = {
    "limit": _limit,
    "linear": _linear,
    "form": _by_form,
    "k-nearest": _neighbors,
    "boosted": _boosted,
}
"""Name -> function that learns from the first rows, and predicts shares of the second."""

"""Six simple models of a table's raw columns, written with scikit-learn and XGBoost alone.

Each predicts the log of the time. Positive numbers count in octaves; texts are indicators.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.preprocessing import StandardScaler

from foretune.models.validation.baselines import predict_baselines

RIDGE_STRENGTHS = np.logspace(-4, 2, 7)


def log_linear_law(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Ridge regression: one power law of all sizes."""
    return np.asarray(RidgeCV(RIDGE_STRENGTHS).fit(X, y).predict(wanted))


def boosted_trees(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """XGBoost as its users take it."""
    from xgboost import XGBRegressor

    model: Any = XGBRegressor(
        n_estimators=300, max_depth=6, learning_rate=0.08, subsample=0.8, n_jobs=1, random_state=0
    )
    return np.asarray(model.fit(X, y).predict(wanted))


def law_and_trees(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The law, and XGBoost on what it leaves."""
    rest = y - log_linear_law(X, y, X)
    return log_linear_law(X, y, wanted) + boosted_trees(X, rest, wanted)


def nearest_neighbor(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The nearest measured row."""
    return np.asarray(KNeighborsRegressor(1).fit(X, y).predict(wanted))


def median(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The median of all rows."""
    return np.full(len(wanted), np.median(y))


SIMPLE_MODELS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "log-linear law": log_linear_law,
    "law + XGBoost": law_and_trees,
    "XGBoost": boosted_trees,
    "nearest neighbor": nearest_neighbor,
    "median": median,
}
"""Name -> function of inputs, logs of their times, and the inputs to predict."""
INTERPOLATION = "interpolation"
SIMPLE_NAMES = (*SIMPLE_MODELS, INTERPOLATION)


def simple_predictions(known: pd.DataFrame, test: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the times in ms that each simple model predicts for the run table ``test``."""
    # Both tables together, so that they have the same columns of indicators.
    inputs = _inputs(pd.concat([known, test], ignore_index=True))
    n_known = len(known)
    scaler = StandardScaler().fit(inputs[:n_known])
    X = scaler.transform(inputs[:n_known])
    X_test = scaler.transform(inputs[n_known:])

    y = np.log(known["time_ms"].to_numpy(dtype=float))
    predictions = {}
    for name, predict in SIMPLE_MODELS.items():
        predictions[name] = np.exp(predict(X, y, X_test))

    # Interpolation reads the table itself.
    grid = predict_baselines("time_ms", None, known, test, ("grid interpolation",))
    predictions[INTERPOLATION] = grid["grid interpolation"]
    return predictions


def _inputs(runs: pd.DataFrame) -> np.ndarray:
    """Return logs of positive numbers, other numbers, and indicators of texts, shape (rows, k)."""
    columns = [name for name in runs if name.startswith(("problem.", "config."))]
    numbers = runs[columns].select_dtypes("number").astype(float)
    positive = numbers.columns[(numbers > 0).all()]
    numbers[positive] = np.log2(numbers[positive])
    parts = [numbers.to_numpy()]

    texts = runs[[name for name in columns if name not in numbers]].astype(str)
    if len(texts.columns):
        parts.append(pd.get_dummies(texts, dtype=float).to_numpy())
    return np.nan_to_num(np.hstack(parts))

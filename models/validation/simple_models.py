"""Simple models of a table's raw columns, which a predictor must beat.

They are written with scikit-learn and XGBoost alone, and know nothing of kernels. Each predicts the
log of a target. Positive numbers count in octaves; texts are indicators.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

RIDGE_STRENGTHS = np.logspace(-4, 2, 7)
MAX_ROWS = 20_000
"""Maximum rows to learn from (random sample)."""
LOG_LINEAR = "log-linear law"
LAW_AND_TREES = "law + XGBoost"
MEDIAN = "median"

SimpleModel = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Inputs, logs of their target, and inputs to predict -> predicted logs."""


def log_linear_law(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Ridge regression: one power law of all sizes."""
    from sklearn.linear_model import RidgeCV

    return np.asarray(RidgeCV(RIDGE_STRENGTHS).fit(X, y).predict(wanted))


def boosted_trees(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """XGBoost as its users take it."""
    from xgboost import XGBRegressor

    model: Any = XGBRegressor(
        n_estimators=300, max_depth=6, learning_rate=0.08, subsample=0.8, n_jobs=1, random_state=0
    )
    return np.asarray(model.fit(X, y).predict(wanted), dtype=float)


def law_and_trees(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The law, and XGBoost on what it leaves."""
    residual = y - log_linear_law(X, y, X)
    return log_linear_law(X, y, wanted) + boosted_trees(X, residual, wanted)


def nearest_row(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The nearest measured row."""
    from sklearn.neighbors import KNeighborsRegressor

    return np.asarray(KNeighborsRegressor(1).fit(X, y).predict(wanted))


def median(X: np.ndarray, y: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The median of all rows."""
    return np.full(len(wanted), np.median(y))


SIMPLE_MODELS: dict[str, SimpleModel] = {
    LOG_LINEAR: log_linear_law,
    LAW_AND_TREES: law_and_trees,
    "XGBoost": boosted_trees,
    "nearest row": nearest_row,
    MEDIAN: median,
}
"""Name in reports -> model."""


def predict_simple(
    target: str,
    known: pd.DataFrame,
    test: pd.DataFrame,
    names: Sequence[str] = tuple(SIMPLE_MODELS),
) -> dict[str, np.ndarray]:
    """Return what the simple models ``names``, learned from ``known``, predict for ``test``."""
    from sklearn.preprocessing import StandardScaler

    sampled = np.random.default_rng(0).permutation(len(known))[:MAX_ROWS]
    known = known.iloc[sampled]
    y = np.log(known[target].to_numpy(dtype=float))

    # Both tables together, so that they have the same columns of indicators.
    inputs = _inputs(pd.concat([known, test], ignore_index=True))
    scaler = StandardScaler().fit(inputs[: len(known)])
    X = scaler.transform(inputs[: len(known)])
    X_test = scaler.transform(inputs[len(known) :])
    return {name: np.exp(SIMPLE_MODELS[name](X, y, X_test)) for name in names}


def _inputs(runs: pd.DataFrame) -> np.ndarray:
    """Return logs of positive numbers, other numbers, and indicators of texts (rows, inputs).

    Several devices are told apart by their name.
    """
    columns = [name for name in runs if name.startswith(("problem.", "config."))]
    numbers = runs[columns].select_dtypes("number").astype(float)
    positive = numbers.columns[(numbers > 0).all()]
    numbers[positive] = np.log2(numbers[positive])
    parts = [numbers.to_numpy()]

    text_columns = [*(name for name in columns if name not in numbers), "device"]
    texts = runs[text_columns].astype(str)
    varied = texts.loc[:, texts.nunique() > 1]
    if len(varied.columns):
        parts.append(pd.get_dummies(varied, dtype=float).to_numpy())
    return np.nan_to_num(np.hstack(parts))

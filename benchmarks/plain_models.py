"""Plain models that predictors are compared with, in `predictors.py`.

Each learns from ``train`` and predicts the target of ``test``, in the target's own unit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from foretune.features.arrays import Rows
from foretune.features.roofline import row_roofline_ms
from foretune.models import Predictor

MAX_TRAINING_ROWS = 100_000
LAUNCH_MS = 0.004
"""Added to rooflines: no launch is faster."""
COLUMN_GROUPS = ("problem.", "config.", "device.")
PLAIN_FEATURES = ("problem.", "config.", "log2_flops", "log2_bytes", "log2_intensity")
"""Beginnings of the names of GPPerf's features: sizes, configuration, work and intensity."""


def default_xgboost() -> Any:
    """Return XGBoost as its users take it, unfitted."""
    from xgboost import XGBRegressor

    return XGBRegressor(n_estimators=400, max_depth=7, learning_rate=0.06, subsample=0.8, n_jobs=1)


def depth_6_forest() -> RandomForestRegressor:
    """Return GPPerf's model, unfitted: 100 trees of depth 6."""
    return RandomForestRegressor(100, max_depth=6, n_jobs=2, random_state=0)


def shallow_forest(
    predictor: Predictor, train: pd.DataFrame, test: pd.DataFrame, target: str
) -> np.ndarray:
    """Return what GPPerf's model predicts, from plain features and for plain targets."""
    sampled = _sampled_rows(train)
    forest = depth_6_forest()
    forest.fit(plain_features(predictor, sampled), sampled[target].to_numpy())
    return np.asarray(forest.predict(plain_features(predictor, test)))


def on_raw_columns(train: pd.DataFrame, test: pd.DataFrame, target: str) -> np.ndarray:
    """Return the prediction of XGBoost of log(target), from the table's own columns."""
    names = [name for name in train if name.startswith(COLUMN_GROUPS) or name == "device"]

    # Both tables together, so that they have the same columns of indicators.
    all_rows = pd.concat([train[names], test[names]], ignore_index=True)
    X = pd.get_dummies(all_rows, dtype=float).to_numpy()
    model = default_xgboost()
    model.fit(X[: len(train)], np.log(train[target].to_numpy(float)))
    return np.asarray(np.exp(model.predict(X[len(train) :])))


def on_our_features(
    make_model: Callable[[], Any],
    predictor: Predictor,
    train: pd.DataFrame,
    test: pd.DataFrame,
    target: str,
) -> np.ndarray:
    """Return the prediction of a plain model of log(target / unit), on our features.

    The unit of a time is roofline + 4 µs, that of power is the board's limit. Without a roofline it
    is one.
    """
    sampled = _sampled_rows(train)
    features = predictor.features_
    log_unit = _log_unit(predictor, sampled, target)
    model = make_model()
    model.fit(features.matrix(sampled), np.log(sampled[target].to_numpy(float)) - log_unit)
    log_ratio = model.predict(features.matrix(test))
    return np.asarray(np.exp(log_ratio + _log_unit(predictor, test, target)))


def plain_features(predictor: Predictor, rows: pd.DataFrame) -> np.ndarray:
    """Return sizes, configuration, work and intensity of ``rows``; unknown is 0."""
    table = predictor.features_.transform(rows)
    names = [name for name in table if name.startswith(PLAIN_FEATURES)]
    return np.nan_to_num(table[names].to_numpy())


def _sampled_rows(train: pd.DataFrame) -> pd.DataFrame:
    order = np.random.default_rng(0).permutation(len(train))
    return train.iloc[order[:MAX_TRAINING_ROWS]]


def _log_unit(predictor: Predictor, rows: pd.DataFrame, target: str) -> np.ndarray:
    features = predictor.features_
    if target == "power_w":
        return np.log(rows["device.power_limit_w"].to_numpy(float))
    if target == "time_ms" and features.roofline_known_:
        described = features.described(Rows(rows))
        return np.log(row_roofline_ms(features.family, described) + LAUNCH_MS)
    return np.zeros(len(rows))

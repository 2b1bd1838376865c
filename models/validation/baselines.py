"""Baselines that a model must beat; every table shows them."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from foretune.family import Family
from foretune.features.featureset import FeatureSet
from foretune.features.roofline import row_roofline_ms
from foretune.models.neighbors import INTERPOLATION, NeighborIndex
from foretune.models.splits import group_columns
from foretune.models.target_names import Target
from foretune.models.targets import TargetScale
from foretune.models.validation.simple_models import (
    LAW_AND_TREES,
    LOG_LINEAR,
    MEDIAN,
    predict_simple,
)

SIMPLE = (LOG_LINEAR, LAW_AND_TREES, MEDIAN)
"""Simple models that know only the columns."""
BASELINES = (
    "roofline",
    "calibrated roofline",
    "problem median",
    "nearest neighbor",
    "grid interpolation",
    *SIMPLE,
)
MAX_NEIGHBOR_ROWS = 20_000


def predict_baselines(
    target: Target,
    family: Family | None,
    known: pd.DataFrame,
    test: pd.DataFrame,
    names: Sequence[str] = BASELINES,
) -> dict[str, np.ndarray]:
    """Return the predictions of baselines, learned from ``known``, for the rows ``test``, by name.

    All rows of ``known`` have the target. The roofline is the plain bound; calibrated, its overhead
    and efficiencies are fitted per format, over all devices. Both are NaN where they are unknown.
    If another baseline has no prediction (a row without neighbors, a new problem), it uses the
    calibrated roofline.
    """
    features = FeatureSet(family).fit(known)
    log_target = np.log(known[target].to_numpy(dtype=float))
    scale = TargetScale.fit(target, features, known, log_target)
    known_unit, unit = (
        scale.log_unit(features, rows) + scale.log_scale(rows) for rows in (known, test)
    )
    log_ratio = log_target - known_unit
    calibrated = np.full(len(test), np.median(log_ratio))
    roofline_ms = row_roofline_ms(family, test)
    found = predict_simple(target, known, test, [name for name in names if name in SIMPLE])
    for name in names:
        if name in SIMPLE:
            continue
        if name == "roofline":
            found[name] = roofline_ms if target == "time_ms" else np.full(len(test), np.nan)
            continue
        predicted = calibrated
        if name in _LOG_RATIOS:
            predicted = _LOG_RATIOS[name](features, known, log_ratio, test)
        predicted = np.exp(np.where(np.isnan(predicted), calibrated, predicted) + unit)
        unknown = (name == "calibrated roofline") & ~np.isfinite(roofline_ms)
        found[name] = np.where(unknown, np.nan, predicted)
    return found


def _problem_median(
    features: FeatureSet, known: pd.DataFrame, log_ratio: np.ndarray, test: pd.DataFrame
) -> np.ndarray:
    """Return the median of each problem's runs: hard to beat if configurations matter little."""
    columns = group_columns(known, "task")
    by = known[columns].assign(rest=log_ratio).groupby(columns, dropna=False, observed=True)["rest"]
    merged = test[columns].merge(by.median().reset_index(), how="left", on=columns)
    return merged["rest"].to_numpy(dtype=float)


def _nearest_neighbor(
    features: FeatureSet, known: pd.DataFrame, log_ratio: np.ndarray, test: pd.DataFrame
) -> np.ndarray:
    """Return the value of the nearest known row by standardized features, among at most 20,000."""
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    some = np.random.default_rng(0).permutation(len(known))[:MAX_NEIGHBOR_ROWS]
    X, wanted = (
        np.nan_to_num(features.transform(rows).to_numpy()) for rows in (known.iloc[some], test)
    )
    model = make_pipeline(StandardScaler(), KNeighborsRegressor(1)).fit(X, log_ratio[some])
    return np.asarray(model.predict(wanted))


def _grid_interpolation(
    features: FeatureSet, known: pd.DataFrame, log_ratio: np.ndarray, test: pd.DataFrame
) -> np.ndarray:
    """Return the interpolation between neighboring runs along every axis (`NeighborIndex`)."""
    index = NeighborIndex.from_runs(known)
    positions = index.locate(known)
    index.measure_axes(positions, log_ratio)
    found = index.neighbor_features(positions, log_ratio, index.locate(test))
    return found[:, INTERPOLATION].astype(float)


_LOG_RATIOS: dict[str, Callable[..., np.ndarray]] = {
    "problem median": _problem_median,
    "nearest neighbor": _nearest_neighbor,
    "grid interpolation": _grid_interpolation,
}
"""Baseline -> its log of the target over its unit; NaN without a prediction."""

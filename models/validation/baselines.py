"""Baselines that a model must beat; shown in every table.

Each is a scikit-learn estimator from run tables to values of one target. Where a baseline has no
prediction (a row without neighbors, a new problem), the calibrated roofline is used.
"""

from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.family import Family
from foretune.features.featureset import Estimator, FeatureSet, RegressorMixin
from foretune.features.roofline import row_roofline_ms
from foretune.models.neighbors import NeighborIndex
from foretune.models.targets import Target, TargetScale
from foretune.models.validation.splits import group_columns

MAX_NEIGHBOR_ROWS = 20_000


class Baseline(RegressorMixin, Estimator):
    """Predicts one target of a run table without a learned model."""

    def __init__(self, target: Target = "time_ms", family: Family | None = None) -> None:
        self.target = target
        self.family = family

    def fit(self, runs: pd.DataFrame, y: Any = None) -> Self:
        """Fit to rows that all have the target."""
        self.features_ = FeatureSet(self.family).fit(runs)
        log_target = np.log(runs[self.target].to_numpy(dtype=float))
        self.scale_ = TargetScale.fit(self.target, self.features_, runs, log_target)
        log_ratio = log_target - self._log_unit(runs)
        self.center_ = float(np.median(log_ratio))
        self._fit(runs, log_ratio)
        return self

    def predict(self, runs: pd.DataFrame) -> np.ndarray:
        """Return one value per row."""
        log_ratio = self._log_ratio(runs)
        log_value = np.where(np.isnan(log_ratio), self.center_, log_ratio)
        return np.asarray(np.exp(log_value + self._log_unit(runs)))

    def _log_unit(self, runs: pd.DataFrame) -> np.ndarray:
        return self.scale_.log_unit(self.features_, runs) + self.scale_.log_scale(runs)

    def _fit(self, runs: pd.DataFrame, log_ratio: np.ndarray) -> None:
        """Fit to the log of the target over its unit."""

    def _log_ratio(self, runs: pd.DataFrame) -> np.ndarray:
        """Return the log of the target over its unit; NaN without a prediction."""
        return np.full(len(runs), np.nan)


class Roofline(Baseline):
    """The plain bound; nothing is fitted."""

    def predict(self, runs: pd.DataFrame) -> np.ndarray:
        """Return the roofline time; NaN if unknown, and for power."""
        if self.target != "time_ms":
            return np.full(len(runs), np.nan)
        return row_roofline_ms(self.family, runs)


class Calibrated(Baseline):
    """Overhead and efficiencies fitted per format, over all devices (`CalibratedRoofline`)."""

    def predict(self, runs: pd.DataFrame) -> np.ndarray:
        """Return one value per row; NaN where there is no roofline."""
        known = np.isfinite(row_roofline_ms(self.family, runs))
        return np.where(known, super().predict(runs), np.nan)


class ProblemMedian(Baseline):
    """The median of a problem's runs: hard to beat where configurations matter little."""

    def _fit(self, runs: pd.DataFrame, log_ratio: np.ndarray) -> None:
        self.columns_ = group_columns(runs, "task")
        table = runs[self.columns_].assign(rest=log_ratio)
        by = table.groupby(self.columns_, dropna=False, observed=True)["rest"]
        self.medians_ = by.median().reset_index()

    def _log_ratio(self, runs: pd.DataFrame) -> np.ndarray:
        merged = runs[self.columns_].merge(self.medians_, how="left", on=self.columns_)
        return merged["rest"].to_numpy(dtype=float)


class NearestNeighbor(Baseline):
    """The nearest training row by standardized features, among at most 20,000 rows."""

    def _fit(self, runs: pd.DataFrame, log_ratio: np.ndarray) -> None:
        from sklearn.neighbors import KNeighborsRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        rng = np.random.default_rng(0)
        some = rng.permutation(len(runs))[:MAX_NEIGHBOR_ROWS]
        X = np.nan_to_num(self.features_.transform(runs.iloc[some]).to_numpy())
        self.model_ = make_pipeline(StandardScaler(), KNeighborsRegressor(1)).fit(
            X, log_ratio[some]
        )

    def _log_ratio(self, runs: pd.DataFrame) -> np.ndarray:
        X = np.nan_to_num(self.features_.transform(runs).to_numpy())
        return np.asarray(self.model_.predict(X))


class GridInterpolation(Baseline):
    """Interpolation between neighboring runs along every axis (`NeighborIndex`)."""

    def _fit(self, runs: pd.DataFrame, log_ratio: np.ndarray) -> None:
        self.neighbor_index_ = NeighborIndex.from_runs(runs)
        self.positions_, self.values_ = self.neighbor_index_.locate(runs), log_ratio
        self.neighbor_index_.measure_axes(self.positions_, log_ratio)

    def _log_ratio(self, runs: pd.DataFrame) -> np.ndarray:
        neighbors = self.neighbor_index_.neighbor_features(
            self.positions_, self.values_, self.neighbor_index_.locate(runs)
        )
        return neighbors[:, -2].astype(float)


BASELINES: dict[str, type[Baseline]] = {
    "roofline": Roofline,
    "calibrated roofline": Calibrated,
    "problem median": ProblemMedian,
    "nearest neighbor": NearestNeighbor,
    "grid interpolation": GridInterpolation,
}

"""Experts on log(measured / formula) of one latency, and their weights.

Boosted trees that know the deployment's labels (model, engine, system, …) are best for known
models. For others, a grouped Gaussian process and shallow trees without labels extrapolate better.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.models.trees.boosting import BoostingModel
from foretune.plan.serve.deployments.group_process import (
    COMPONENTS,
    LABELS,
    NOISE,
    GroupedGaussianProcess,
    group_coordinates,
    group_labels,
)

EXPERTS = ("boosting", "trend", "process")
WEIGHT_STEPS = 4
"""Weights are multiples of one over this."""
TREND: dict[str, Any] = {
    "rounds": 200, "depth": 2, "rate": 0.05, "rows": 0.7, "columns": 0.5, "min_child_weight": 5.0,
    "objective": "reg:absoluteerror",
}  # fmt: skip
"""Parameters of the shallow trees."""


@dataclass(frozen=True)
class LatencyExperts:
    """The fitted experts of one target.

    Attributes:
        labels: label column -> its values in training.
        boosting: on features and labels.
        trend: shallow, on features alone.
        process: the grouped process, which also gives the spread.
    """

    labels: Mapping[str, list[str]]
    boosting: BoostingModel
    trend: BoostingModel
    process: GroupedGaussianProcess

    @classmethod
    def fit(
        cls, target: str, rows: pd.DataFrame, features: pd.DataFrame, error: np.ndarray
    ) -> Self:
        """Fit to the log errors of the formulas.

        ``rows`` come from `analytic_times`, ``features`` from `correction_features`.
        """
        names = group_labels(rows)
        labels = {name: sorted(names[name].astype(str).unique()) for name in LABELS}
        X = features.to_numpy(dtype=np.float32)
        process = GroupedGaussianProcess(COMPONENTS[target], NOISE[target])
        return cls(
            labels,
            BoostingModel().fit(np.hstack([X, _indicators(names, labels)]), error),
            BoostingModel(**TREND).fit(X, error),
            process.fit(names, _coordinates(rows, features), error),
        )

    def predict(self, rows: pd.DataFrame, features: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return the log error by each of `EXPERTS` (rows, experts), and its deviation (rows)."""
        names, X = group_labels(rows), features.to_numpy(dtype=np.float32)
        boosted = self.boosting.predict(np.hstack([X, _indicators(names, self.labels)]))
        mean, deviation = self.process.predict(names, _coordinates(rows, features))
        return np.column_stack([boosted, self.trend.predict(X), mean]), deviation

    def covariance(self, rows: pd.DataFrame, features: pd.DataFrame) -> np.ndarray:
        """Return the covariance of the rows' log errors (rows, rows)."""
        return self.process.covariance(group_labels(rows), _coordinates(rows, features))

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {
            "labels": self.labels,
            "boosting": _model_text(self.boosting),
            "trend": _model_text(self.trend),
            "process": self.process.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the experts from `to_json`'s values."""
        return cls(
            data["labels"], _model_from_text(data["boosting"]), _model_from_text(data["trend"]),
            GroupedGaussianProcess.from_json(data["process"]),
        )  # fmt: skip


def best_weights(opinions: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the experts' weights with the smallest mean error of held-out rows.

    ``opinions`` has shape (rows, experts), ``error`` (rows).
    """
    shares = range(WEIGHT_STEPS + 1)
    grid = [w for w in product(shares, repeat=len(EXPERTS)) if sum(w) == WEIGHT_STEPS]
    weights = np.array(grid) / WEIGHT_STEPS
    off = np.abs(opinions @ weights.T - error[:, None]).mean(axis=0)
    best: np.ndarray = weights[np.argmin(off)]
    return best


def _coordinates(rows: pd.DataFrame, features: pd.DataFrame) -> pd.DataFrame:
    return group_coordinates(rows, np.exp(features["tpot"].to_numpy(dtype=float)))


def _indicators(names: pd.DataFrame, labels: Mapping[str, list[str]]) -> np.ndarray:
    """Return one column per known label, 1 where a row has it."""
    columns = [
        names[name].astype(str) == value for name, known in labels.items() for value in known
    ]
    return np.array(columns, dtype=np.float32).T


def _model_text(model: BoostingModel) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"model{model.suffix}"
        model.save(path)
        return base64.b64encode(path.read_bytes()).decode()


def _model_from_text(text: str) -> BoostingModel:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"model{BoostingModel.suffix}"
        path.write_bytes(base64.b64decode(text))
        return BoostingModel.load(path)

"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.trees.regressor import Regressor, threads_for
from foretune.models.trees.saved_trees import boosted_arrays, boosted_model
from foretune.support.files import read_arrays
from foretune.support.lazy import require


@dataclass(eq=False, repr=False)
class BoostingModel(Regressor):
    """Gradient-boosted trees; the defaults come from an Optuna search on four tables."""

    rounds: int = 300  # number of trees
    depth: int = 8  # maximum depth
    rate: float = 0.07  # learning rate
    rows: float = 0.65  # share of the rows per tree
    columns: float = 0.9  # share of the features per tree
    bins: int = 64  # bins per feature; trees split between them
    min_child_weight: float = 2.0  # minimum rows (or their weight) in a leaf
    objective: str = "reg:squarederror"  # XGBoost's objective
    seed: int = 0

    suffix = ".boosted.npz"

    def quick(self) -> Self:
        """Return a model with a third of the trees and three times the learning rate."""
        rounds = max(1, self.rounds // 3)
        rate = min(1.0, 3.0 * self.rate)
        return super().quick().set_params(rounds=rounds, rate=rate)

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        xgboost = require("xgboost", "learn", "a predictor of boosted trees")

        threads = threads_for(len(X))
        data = xgboost.QuantileDMatrix(X, y, max_bin=self.bins, nthread=threads)
        parameters = {
            "tree_method": "hist",
            "objective": self.objective,
            "max_depth": self.depth,
            "eta": self.rate,
            "subsample": self.rows,
            "colsample_bytree": self.columns,
            "min_child_weight": self.min_child_weight,
            "max_bin": self.bins,
            "seed": self.seed,
            "nthread": threads,
        }
        self._set_booster(xgboost.train(parameters, data, num_boost_round=self.rounds))

    def _set_booster(self, booster: Any) -> None:
        """Set the booster to predict in one thread, because callers split the rows."""
        self.booster_: Any = booster
        self.booster_.set_param({"nthread": 1})

    def _predict(self, X: np.ndarray) -> np.ndarray:
        prediction: np.ndarray = self.booster_.inplace_predict(X, validate_features=False)
        return prediction.astype(np.float64)

    def save(self, path: Path) -> None:
        """Write parameters, and the nodes of all trees, as arrays."""
        np.savez_compressed(path, **boosted_arrays(self.booster_))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a saved model; raises `ValueError` or a reader's error if it is damaged."""
        xgboost = require("xgboost", "learn", "a predictor of boosted trees")

        model = cls()
        model._set_booster(xgboost.Booster(model_file=boosted_model(read_arrays(path))))
        model.n_features_in_ = model.booster_.num_features()
        return model

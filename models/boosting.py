"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.regressor import Regressor, threads_for
from foretune.models.trees import Trees

FEW_ROWS = 4
"""So few go through the trees one by one: XGBoost takes longer than that to be called."""


class BoostingModel(Regressor):
    """Gradient-boosted trees; the defaults are the choice of ``benchmarks/hyperparameters.py``.

    Args:
        rounds: trees.
        depth: of a tree at most.
        rate: learning rate.
        rows: share of the rows each tree sees.
        columns: share of the features each tree sees.
        least_weight: rows (or their weight) in a leaf at least.
        objective: XGBoost's.
        seed: of the sampling of rows and columns.
    """

    suffix = ".ubj"

    def __init__(
        self,
        rounds: int = 300,
        depth: int = 8,
        rate: float = 0.07,
        rows: float = 0.65,
        columns: float = 0.9,
        least_weight: float = 2.0,
        objective: str = "reg:squarederror",
        seed: int = 0,
    ) -> None:
        self.rounds = rounds
        self.depth = depth
        self.rate = rate
        self.rows = rows
        self.columns = columns
        self.least_weight = least_weight
        self.objective = objective
        self.seed = seed

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        import xgboost

        threads = threads_for(len(X))
        data = xgboost.QuantileDMatrix(X, y, nthread=threads)
        parameters = {
            "tree_method": "hist", "objective": self.objective, "max_depth": self.depth,
            "eta": self.rate, "subsample": self.rows, "colsample_bytree": self.columns,
            "min_child_weight": self.least_weight, "seed": self.seed, "nthread": threads,
        }  # fmt: skip
        self._keep(xgboost.train(parameters, data, num_boost_round=self.rounds))

    def _keep(self, booster: Any) -> None:
        """Keep a trained booster; it predicts in one thread, its callers share out the rows."""
        self.booster_: Any = booster
        self.booster_.set_param({"nthread": 1})
        self.trees_: Trees | None = None
        self.looked_for_trees_ = False

    def _predict(self, X: np.ndarray) -> np.ndarray:
        if len(X) <= FEW_ROWS:
            if not self.looked_for_trees_:
                self.trees_, self.looked_for_trees_ = Trees.of(self.booster_), True
            if self.trees_ is not None:
                return np.array([self.trees_.predict(row) for row in X])
        prediction: np.ndarray = self.booster_.inplace_predict(X, validate_features=False)
        return prediction.astype(np.float64)

    def save(self, path: Path) -> None:
        """Write XGBoost's UBJ."""
        self.booster_.save_model(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read XGBoost's UBJ."""
        import xgboost

        model = cls()
        model._keep(xgboost.Booster(model_file=path))
        model.n_features_in_ = model.booster_.num_features()
        return model

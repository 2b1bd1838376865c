"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.regressor import Regressor, threads_for


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
        self.threads_ = threads
        self.booster_: Any = xgboost.train(parameters, data, num_boost_round=self.rounds)

    def _predict(self, X: np.ndarray) -> np.ndarray:
        self.use_threads(threads_for(len(X)))
        prediction: np.ndarray = self.booster_.inplace_predict(X, validate_features=False)
        return prediction.astype(np.float64)

    def use_threads(self, threads: int) -> None:
        """Let XGBoost use ``threads``; to be told so takes it as long as predicting a row."""
        if threads != self.threads_:
            self.booster_.set_param({"nthread": threads})
            self.threads_ = threads

    def save(self, path: Path) -> None:
        """Write XGBoost's UBJ."""
        self.booster_.save_model(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read XGBoost's UBJ."""
        import xgboost

        model = cls()
        model.threads_ = 1
        model.booster_ = xgboost.Booster({"nthread": 1}, model_file=path)
        model.n_features_in_ = model.booster_.num_features()
        return model

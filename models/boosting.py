"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.device import available_cores
from foretune.models.regressor import Regressor

PARAMETERS = {
    "max_depth": 6,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "min_child_weight": 2,
    "tree_method": "hist",
}
ROUNDS = 300
SMALL_BATCH = 4096
"""Below this many rows one thread is faster: starting threads takes milliseconds."""


class BoostingModel(Regressor):
    """300 trees of depth 6, squared error."""

    suffix = ".ubj"
    booster: Any
    """XGBoost's, once fitted."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Learn from ``X`` and ``y``."""
        import xgboost

        parameters = {**PARAMETERS, "seed": self.seed, "nthread": available_cores()}
        data = xgboost.QuantileDMatrix(X, y)
        self.booster = xgboost.train(parameters, data, num_boost_round=ROUNDS)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return one float64 per row."""
        threads = 1 if len(X) < SMALL_BATCH else available_cores()
        self.booster.set_param({"nthread": threads})
        prediction: np.ndarray = self.booster.inplace_predict(X)
        return prediction.astype(np.float64)

    def save(self, path: Path) -> None:
        """Write XGBoost's UBJ."""
        self.booster.save_model(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read XGBoost's UBJ."""
        import xgboost

        model = cls()
        model.booster = xgboost.Booster(model_file=path)
        return model

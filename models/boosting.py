"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.regressor import Regressor, threads_for

PARAMETERS = {
    "max_depth": 6,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "min_child_weight": 2,
    "tree_method": "hist",
}
ROUNDS = 300


class BoostingModel(Regressor):
    """300 trees of depth 6, squared error, unless told otherwise.

    Args:
        seed: of the sampling of rows and columns.
        parameters: XGBoost's, in place of or beside `PARAMETERS`.
        rounds: trees.
    """

    suffix = ".ubj"
    booster: Any
    """XGBoost's, once fitted."""

    def __init__(
        self, seed: int = 0, parameters: Mapping[str, Any] | None = None, rounds: int = ROUNDS
    ) -> None:
        super().__init__(seed)
        self._parameters = {**PARAMETERS, **(parameters or {}), "seed": seed}
        self._rounds = rounds

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Learn from ``X`` and ``y``."""
        import xgboost

        threads = threads_for(len(X))
        data = xgboost.QuantileDMatrix(X, y, nthread=threads)
        self.booster = xgboost.train(
            {**self._parameters, "nthread": threads}, data, num_boost_round=self._rounds
        )
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return one float64 per row."""
        self.booster.set_param({"nthread": threads_for(len(X))})
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

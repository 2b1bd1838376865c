"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

import gzip
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.trees.nodes import Trees
from foretune.models.trees.regressor import Regressor, threads_for
from foretune.models.trees.walk import Walk, pays_to_compile

FEW_ROWS = 4
"""So few go through the trees one by one: XGBoost takes longer than that to be called."""
MANY_ROWS = 2048
"""So many pay for bringing a model's trees into the form that a compiled walk reads."""


class BoostingModel(Regressor):
    """Gradient-boosted trees; the defaults come from a search with Optuna over four tables.

    Args:
        rounds: trees.
        depth: of a tree at most.
        rate: learning rate.
        rows: share of the rows each tree sees.
        columns: share of the features each tree sees.
        bins: of a feature's values; trees split between them.
        least_weight: rows (or their weight) in a leaf at least.
        objective: XGBoost's.
        seed: of the sampling of rows and columns.
    """

    suffix = ".ubj.gz"

    def __init__(
        self,
        rounds: int = 300,
        depth: int = 8,
        rate: float = 0.07,
        rows: float = 0.65,
        columns: float = 0.9,
        bins: int = 64,
        least_weight: float = 2.0,
        objective: str = "reg:squarederror",
        seed: int = 0,
    ) -> None:
        self.rounds = rounds
        self.depth = depth
        self.rate = rate
        self.rows = rows
        self.columns = columns
        self.bins = bins
        self.least_weight = least_weight
        self.objective = objective
        self.seed = seed

    def quick(self) -> Self:
        """Return a model with half the trees, each of which counts twice."""
        rounds, rate = max(1, self.rounds // 2), min(1.0, 2.0 * self.rate)
        return super().quick().set_params(rounds=rounds, rate=rate)

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        import xgboost

        threads = threads_for(len(X))
        data = xgboost.QuantileDMatrix(X, y, max_bin=self.bins, nthread=threads)
        parameters = {
            "tree_method": "hist", "objective": self.objective, "max_depth": self.depth,
            "eta": self.rate, "subsample": self.rows, "colsample_bytree": self.columns,
            "min_child_weight": self.least_weight, "max_bin": self.bins, "seed": self.seed,
            "nthread": threads,
        }  # fmt: skip
        self._keep(xgboost.train(parameters, data, num_boost_round=self.rounds))

    def _keep(self, booster: Any) -> None:
        """Keep a trained booster; it predicts in one thread, its callers share out the rows."""
        self.booster_: Any = booster
        self.booster_.set_param({"nthread": 1})
        self.trees_: Trees | None = None
        self.looked_for_trees_ = False
        self.walk_: Walk | None = None

    def _predict(self, X: np.ndarray) -> np.ndarray:
        if len(X) <= FEW_ROWS and (walk := self._walk()) is not None:
            return walk.predict(X)[:, 0]
        many = len(X) >= MANY_ROWS and pays_to_compile(len(X), self.booster_.num_boosted_rounds())
        trees = self.trees() if many else None
        if trees is not None and trees.compiled is not None:
            return trees.compiled.predict(X)
        prediction: np.ndarray = self.booster_.inplace_predict(X, validate_features=False)
        return prediction.astype(np.float64)

    def trees(self) -> Trees | None:
        """Return the trees as plain arrays; None if they are of a kind not known here."""
        if not self.looked_for_trees_:
            self.trees_, self.looked_for_trees_ = Trees.of(self.booster_), True
        return self.trees_

    def _walk(self) -> Walk | None:
        if self.walk_ is None and (trees := self.trees()) is not None:
            self.walk_ = Walk.of([trees])
        return self.walk_

    def save(self, path: Path) -> None:
        """Write XGBoost's UBJ, packed: three parts in four of it are the same again and again."""
        path.write_bytes(gzip.compress(self.booster_.save_raw("ubj"), mtime=0))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        import xgboost

        model = cls()
        model._keep(xgboost.Booster(model_file=bytearray(gzip.decompress(path.read_bytes()))))
        model.n_features_in_ = model.booster_.num_features()
        return model

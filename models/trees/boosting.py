"""Gradient-boosted trees (XGBoost; Chen and Guestrin, KDD 2016)."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.files import read_bytes
from foretune.lazy import require
from foretune.models.trees.regressor import Regressor, threads_for
from foretune.models.trees.tree_arrays import TreeArrays, parse_learner
from foretune.models.trees.ubjson import zero_fields

MAX_ARRAY_ROWS = 4  # up to this many rows use the tree arrays: calling XGBoost takes longer
UNUSED_NODE_FIELDS = ("base_weights", "loss_changes")
"""Node fields that neither prediction nor Shapley values read."""


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

    suffix = ".ubj.gz"

    def quick(self) -> Self:
        """Return a model with a third of the trees and three times the learning rate."""
        rounds, rate = max(1, self.rounds // 3), min(1.0, 3.0 * self.rate)
        return super().quick().set_params(rounds=rounds, rate=rate)

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        xgboost = require("xgboost", "learn", "a predictor of boosted trees")

        threads = threads_for(len(X))
        data = xgboost.QuantileDMatrix(X, y, max_bin=self.bins, nthread=threads)
        parameters = {
            "tree_method": "hist", "objective": self.objective, "max_depth": self.depth,
            "eta": self.rate, "subsample": self.rows, "colsample_bytree": self.columns,
            "min_child_weight": self.min_child_weight, "max_bin": self.bins, "seed": self.seed,
            "nthread": threads,
        }  # fmt: skip
        self._set_booster(xgboost.train(parameters, data, num_boost_round=self.rounds))

    def _set_booster(self, booster: Any) -> None:
        """Set the booster to predict in one thread, because callers split the rows."""
        self.booster_: Any = booster
        self.booster_.set_param({"nthread": 1})
        self.__dict__.pop("arrays", None)

    @cached_property
    def arrays(self) -> TreeArrays | None:
        """The trees as arrays, for few rows; None if they are not supported."""
        return TreeArrays.from_booster(self.booster_)

    def _predict(self, X: np.ndarray) -> np.ndarray:
        if len(X) <= MAX_ARRAY_ROWS and (arrays := self.arrays) is not None:
            return arrays.predict(X)[:, 0]
        prediction: np.ndarray = self.booster_.inplace_predict(X, validate_features=False)
        return prediction.astype(np.float64)

    def save(self, path: Path) -> None:
        """Write XGBoost's UBJ, compressed, with `UNUSED_NODE_FIELDS` zeroed."""
        raw = bytes(self.booster_.save_raw("ubj"))
        path.write_bytes(gzip.compress(zero_fields(raw, UNUSED_NODE_FIELDS), mtime=0))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a saved model; raises `ValueError` or a reader's error if it is damaged."""
        xgboost = require("xgboost", "learn", "a predictor of boosted trees")

        model, data = cls(), read_bytes(path)
        learner = parse_learner(data)  # first, because XGBoost does not check files
        model._set_booster(xgboost.Booster(model_file=bytearray(data)))
        model.arrays = TreeArrays.from_learner(learner)
        model.n_features_in_ = model.booster_.num_features()
        return model


class JointModel:
    """Models on the same rows; for a few rows, one traversal covers the trees of all models.

    Each model was fitted to the first columns, or to all of them.
    """

    def __init__(self, models: Sequence[Regressor]) -> None:
        self.models = list(models)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the prediction of each model for a float32 matrix (rows, models)."""
        if 0 < len(X) <= MAX_ARRAY_ROWS and (arrays := self.arrays) is not None:
            return arrays.predict(X)
        return np.column_stack([m.predict(X[:, : m.n_features_in_]) for m in self.models])

    @cached_property
    def arrays(self) -> TreeArrays | None:
        """The trees of all models; None if a model has none, or their objectives differ."""
        arrays = [m.arrays if isinstance(m, BoostingModel) else None for m in self.models]
        known = [a for a in arrays if a is not None]
        if len(known) < len(arrays) or len({a.logistic for a in known}) != 1:
            return None
        return TreeArrays.join(known)

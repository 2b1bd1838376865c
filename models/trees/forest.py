"""Random forests (scikit-learn; Breiman, Machine Learning 45, 2001)."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.trees.regressor import Regressor, threads_for

TRUSTED = ["sklearn.tree._tree.Tree"]
"""What skops must be told to restore: arrays of tree nodes, no code."""


class ForestModel(Regressor):
    """A forest of full-depth trees.

    Args:
        trees: how many.
        columns: share of the features each split looks at.
        least_rows: in a leaf.
        seed: of everything random.
    """

    suffix = ".skops"

    def __init__(
        self, trees: int = 100, columns: float = 0.5, least_rows: int = 1, seed: int = 0
    ) -> None:
        self.trees = trees
        self.columns = columns
        self.least_rows = least_rows
        self.seed = seed

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self.forest_: Any = RandomForestRegressor(
            n_estimators=self.trees,
            max_features=self.columns,
            min_samples_leaf=self.least_rows,
            n_jobs=threads_for(len(X)),
            random_state=self.seed,
        ).fit(X, y)

    def _predict(self, X: np.ndarray) -> np.ndarray:
        # Tree by tree, as scikit-learn's own `predict` does, without what that adds to each call.
        trees = self.forest_.estimators_
        total = sum(tree.tree_.predict(X)[:, 0] for tree in trees)
        return np.asarray(total / len(trees))

    def save(self, path: Path) -> None:
        """Write skops' format: arrays and plain values."""
        from skops.io import dump

        dump(self.forest_, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read skops' format; types that are neither scikit-learn's nor trees are refused."""
        from skops.io import load

        model = cls()
        model.forest_ = load(path, trusted=TRUSTED)
        model.n_features_in_ = model.forest_.n_features_in_
        return model

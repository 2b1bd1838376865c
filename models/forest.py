"""Random forests (scikit-learn; Breiman, Machine Learning 45, 2001)."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.regressor import Regressor, threads_for

TRUSTED = ["sklearn.tree._tree.Tree"]
"""What skops must be told to restore: arrays of tree nodes, no code."""


class ForestModel(Regressor):
    """200 full-depth trees."""

    suffix = ".skops"
    forest: Any
    """scikit-learn's, once fitted."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        """Learn from ``X`` and ``y``."""
        from sklearn.ensemble import RandomForestRegressor

        self.forest = RandomForestRegressor(
            n_estimators=200,
            max_features=0.5,
            min_samples_leaf=1,
            n_jobs=threads_for(len(X)),
            random_state=self.seed,
        ).fit(X, y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return one float64 per row."""
        if len(X) == 0:  # scikit-learn refuses to predict nothing
            return np.empty(0)
        prediction: np.ndarray = self.forest.predict(X)
        return prediction

    def save(self, path: Path) -> None:
        """Write skops' format: arrays and plain values."""
        from skops.io import dump

        dump(self.forest, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read skops' format; types that are neither scikit-learn's nor trees are refused."""
        from skops.io import load

        model = cls()
        model.forest = load(path, trusted=TRUSTED)
        return model

"""Several models evaluated on the same rows."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from foretune.models.trees.boosting import MAX_ARRAY_ROWS, BoostingModel
from foretune.models.trees.regressor import Regressor
from foretune.models.trees.tree_arrays import TreeArrays


class JointModel:
    """Models on the same rows; a few rows pass the trees of all models in one traversal.

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
        trees = [m.forms_.trees if isinstance(m, BoostingModel) else None for m in self.models]
        known = [t for t in trees if t is not None]
        if len(known) < len(trees) or len({t.logistic for t in known}) != 1:
            return None
        return TreeArrays.from_trees(known)

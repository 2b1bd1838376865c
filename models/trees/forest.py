"""Random forests (scikit-learn; Breiman, Machine Learning 45, 2001)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.trees.regressor import Regressor, threads_for
from foretune.models.trees.saved_trees import require_fields, require_trees
from foretune.support.files import read_arrays

NODE_FIELDS = ("left_child", "right_child", "feature", "threshold", "missing_go_to_left")
"""Fields that scikit-learn needs of a node to predict."""


@dataclass(eq=False, repr=False)
class ForestModel(Regressor):
    """A forest of full-depth trees."""

    trees: int = 100  # number of trees
    columns: float = 0.5  # share of the features considered per split
    min_leaf_rows: int = 1  # minimum rows in a leaf
    seed: int = 0  # seed of the bootstrap samples and splits

    suffix = ".npz"

    def _fit(self, X: np.ndarray, y: np.ndarray) -> None:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(
            n_estimators=self.trees,
            max_features=self.columns,
            min_samples_leaf=self.min_leaf_rows,
            n_jobs=threads_for(len(X)),
            random_state=self.seed,
        ).fit(X, y)
        self.trees_: list[Any] = [tree.tree_ for tree in forest.estimators_]

    def _predict(self, X: np.ndarray) -> np.ndarray:
        # Same as scikit-learn's `predict`, without its overhead per call.
        total = sum(tree.predict(X)[:, 0] for tree in self.trees_)
        return np.asarray(total / len(self.trees_))

    def save(self, path: Path) -> None:
        """Write the nodes of all trees as arrays."""
        states = [tree.__getstate__() for tree in self.trees_]
        nodes = np.concatenate([state["nodes"] for state in states])
        np.savez_compressed(
            path,
            sizes=[state["node_count"] for state in states],
            depths=[state["max_depth"] for state in states],
            value=np.concatenate([state["values"].ravel() for state in states]),
            columns=self.n_features_in_,
            **{part: nodes[part] for part in NODE_FIELDS},  # type: ignore[arg-type]
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a saved forest; raises `ValueError` or a reader's error if it is damaged."""
        from sklearn.tree._tree import NODE_DTYPE, Tree

        data = read_arrays(path)
        model = cls()
        columns = int(data["columns"])
        sizes = data["sizes"]
        value = data["value"]
        fields = require_fields(data, {name: NODE_DTYPE[name] for name in NODE_FIELDS})
        nodes = np.zeros(len(fields["feature"]), dtype=NODE_DTYPE)
        for name, of_nodes in fields.items():
            nodes[name] = of_nodes
        if value.shape != nodes.shape or not np.isfinite(value).all():
            raise ValueError("leaves have no values")
        require_trees(sizes, columns, *(fields[name] for name in NODE_FIELDS[:3]))
        starts = np.cumsum(sizes)[:-1]
        parts = zip(
            np.split(nodes, starts), np.split(value, starts), data["depths"].tolist(), strict=True
        )
        model.trees_ = []
        for tree_nodes, values, depth in parts:
            tree = Tree(columns, np.ones(1, dtype=np.intp), 1)
            state = {"max_depth": depth, "node_count": len(tree_nodes), "nodes": tree_nodes.copy()}
            tree.__setstate__({**state, "values": values.reshape(-1, 1, 1).astype(np.float64)})
            model.trees_.append(tree)
        model.n_features_in_ = columns
        return model

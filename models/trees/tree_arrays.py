"""Reads XGBoost's models, and keeps boosted trees as arrays that predict single rows with NumPy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from foretune.models.trees.ubjson import read_ubjson

OBJECTIVES = ("reg:squarederror", "binary:logistic", "rank:ndcg")
NODE_FIELDS = {
    "left_children": np.int64, "right_children": np.int64, "split_indices": np.int64,
    "split_conditions": np.float32, "default_left": np.int64,
}  # fmt: skip
"""Node fields of XGBoost's model schema -> dtype."""
MAX_DEPTH = 1000  # maximum levels of a tree
MAX_COLUMNS = 1 << 20
ROOT_PARENT = 2**31 - 1  # XGBoost's parent of a root
ONE_OUTPUT = {"num_class": "0", "num_target": "1"}
"""XGBoost's parameters for a model with one output."""


def parse_learner(data: bytes) -> Mapping[str, Any]:
    """Return the learner of an XGBoost model in UBJSON, checked to be safe to traverse.

    XGBoost does not check files: a wrong child crashes it, and a cycle never ends. Raises
    ValueError, LookupError, TypeError, AttributeError if it is damaged, or of another kind.
    """
    learner: Mapping[str, Any] = read_ubjson(data)["learner"]
    booster, model_parameters = learner["gradient_booster"], learner["learner_model_param"]
    model, rounds = booster["model"], len(booster["model"]["trees"])
    one = {name: model_parameters.get(name, value) for name, value in ONE_OUTPUT.items()}
    numbered = [*model["tree_info"]] == [0] * rounds
    counted = [*model["iteration_indptr"]] == [*range(rounds + 1)]
    parameters = model["gbtree_model_param"]
    counted &= (int(parameters["num_trees"]), parameters["num_parallel_tree"]) == (rounds, "1")
    if booster["name"] != "gbtree" or one != ONE_OUTPUT or not (numbered and counted and rounds):
        raise ValueError("not boosted trees with one output")
    if len(model.get("cats", {}).get("enc", ())) or len(learner["feature_types"]):
        raise ValueError("features are not numeric")
    sizes, parts = _stack_nodes(model["trees"])
    for tree, size in zip(model["trees"], sizes, strict=True):
        parameters = tree["tree_param"]
        if (int(parameters["num_nodes"]), parameters["size_leaf_vector"]) not in (
            (size, "1"),
            (size, "0"),
        ):
            raise ValueError("a tree does not have the declared number of nodes")
        plain = (tree[n].dtype.str == t and len(tree[n]) == size for n, t in _PER_NODE.items())
        if not all(plain) or tree["split_type"].any() or any(len(tree[n]) for n in _CATEGORIES):
            raise ValueError("a tree has splits that are not numeric")
    left, right, column = parts[:3]
    inner = left >= 0
    if (right[~inner] >= 0).any():
        raise ValueError("a node has one child")
    require_trees(left, right, inner, sizes)
    require_known_columns(column[inner], int(model_parameters["num_feature"]))
    parents = np.concatenate([tree["parents"] for tree in model["trees"]])
    starts = np.cumsum(sizes) - sizes
    first, indices = np.repeat(starts, sizes)[inner], np.arange(len(left))[inner]
    same = (parents[child[inner] + first] == indices - first for child in (left, right))
    if not all(map(np.all, same)) or (parents[starts] != ROOT_PARENT).any():
        raise ValueError("a tree's parents are not those of its children")
    return learner


_PER_NODE = {
    **dict.fromkeys(("left_children", "right_children", "split_indices", "parents"), ">i4"),
    **dict.fromkeys(("default_left", "split_type"), "|u1"),
    **dict.fromkeys(("split_conditions", "base_weights", "loss_changes", "sum_hessian"), ">f4"),
}
"""Required dtypes; XGBoost reinterprets arrays of other types."""
_CATEGORIES = tuple(f"categories{part}" for part in ("", "_nodes", "_segments", "_sizes"))


def _stack_nodes(trees: list[Mapping[str, Any]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the number of nodes of each tree, and the `NODE_FIELDS` of all trees, concatenated."""
    sizes = np.array([len(tree["left_children"]) for tree in trees])
    return sizes, [
        np.concatenate([tree[part] for tree in trees]).astype(kind)
        for part, kind in NODE_FIELDS.items()
    ]


def require_known_columns(column: np.ndarray, columns: int) -> None:
    """Raise `ValueError` unless inner nodes use existing features."""
    if not 0 < columns <= MAX_COLUMNS or (column < 0).any() or (column >= columns).any():
        raise ValueError("a tree uses features that do not exist")


def require_trees(
    left: np.ndarray, right: np.ndarray, inner: np.ndarray, sizes: np.ndarray
) -> None:
    """Raise `ValueError` unless the nodes form trees of at most `MAX_DEPTH` levels.

    Children are indices within their tree, all trees concatenated; a tree's first node is its root.
    """
    if not (len(left) == len(right) == sizes.sum() and (sizes > 0).all()):
        raise ValueError("a tree has incomplete nodes")
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    indices, ends = np.arange(len(left)) - first, np.repeat(sizes, sizes)
    children = np.stack([left, right])
    if ((children <= indices) | (children >= ends))[:, inner].any():
        raise ValueError("a tree's child does not come after its parent")
    below = (children + first)[:, inner]
    if np.bincount(below.ravel(), minlength=1).max(initial=0) > 1:
        raise ValueError("a tree's child has two parents")
    level, children = np.cumsum(sizes) - sizes, children + first
    for _ in range(MAX_DEPTH):
        level = level[inner[level]]
        if not len(level):
            return
        level = children[:, level].ravel()
    raise ValueError(f"a tree is more than {MAX_DEPTH} levels deep")


def _depth(left: np.ndarray, roots: np.ndarray) -> int:
    depth, level = 0, roots
    while len(level := level[left[level] != level]):
        level = np.concatenate([left[level], left[level] + 1])
        depth += 1
    return depth


@dataclass(eq=False)
class TreeArrays:
    """The nodes of all trees of some models, concatenated; a leaf is its own left child.

    A row is duplicated: missing values are infinite in the first copy (go right) and minus infinite
    in the second (go left). Each node reads the copy that matches its default direction, by
    ``slot``. Values below ``bound`` go to ``left``, others to the node after that; the bound of a
    leaf is infinite. ``roots`` are the first nodes of the trees, ``first`` the first tree of each
    model and then their number, ``features`` the maximum number of columns over the models,
    ``depth`` the maximum depth of each. A model's base value is its first tree, a single leaf.
    """

    left: np.ndarray
    slot: np.ndarray
    bound: np.ndarray
    leaf: np.ndarray
    roots: np.ndarray
    first: np.ndarray
    depth: np.ndarray
    features: int
    logistic: bool

    @classmethod
    def from_booster(cls, booster: Any) -> Self | None:
        """Return the trees of an XGBoost booster; None if they are not supported.

        Supported are numeric splits with adjacent siblings and one output, for squared error,
        probability or ranking.
        """
        try:
            return cls.from_learner(parse_learner(bytes(booster.save_raw("ubj"))))
        except (LookupError, ValueError):
            return None

    @classmethod
    def from_learner(cls, learner: Mapping[str, Any]) -> Self | None:
        """Return the trees of a learner from `parse_learner`."""
        objective = learner["objective"]["name"]
        sizes, (left, right, column, bound, default) = _stack_nodes(
            learner["gradient_booster"]["model"]["trees"]
        )
        inner, columns = left >= 0, int(learner["learner_model_param"]["num_feature"])
        if objective not in OBJECTIVES or (right[inner] != left[inner] + 1).any():
            return None
        roots = np.cumsum([0, 1, *sizes])[:-1]
        left = np.where(inner, left + np.repeat(roots[1:], sizes), np.arange(1, len(left) + 1))
        left = np.append(0, left)
        base = float(learner["learner_model_param"]["base_score"].strip("[]"))
        if logistic := objective == "binary:logistic":
            base = float(np.log(base / (1.0 - base)))
        return cls(
            left=left,
            slot=np.append(2 * columns, np.where(inner, column + columns * default, 2 * columns)),
            bound=np.append(np.inf, np.where(inner, bound, np.inf)).astype(np.float32),
            leaf=np.append(base, np.where(inner, 0.0, bound)).astype(np.float32),
            roots=roots,
            first=np.array([0, len(roots)]),
            depth=np.array([_depth(left, roots)]),
            features=columns,
            logistic=logistic,
        )

    @classmethod
    def join(cls, models: Sequence[Self]) -> Self:
        """Return the trees of models with the same objective."""
        features = max(trees.features for trees in models)
        nodes, trees = (
            np.cumsum([0, *sizes])
            for sizes in ([len(m.left) for m in models], [len(m.roots) for m in models])
        )
        slots = (np.divmod(m.slot, m.features) for m in models)
        return cls(
            left=np.concatenate([m.left + n for m, n in zip(models, nodes, strict=False)]),
            slot=np.concatenate([copy * features + column for copy, column in slots]),
            bound=np.concatenate([m.bound for m in models]),
            leaf=np.concatenate([m.leaf for m in models]),
            roots=np.concatenate([m.roots + n for m, n in zip(models, nodes, strict=False)]),
            first=trees,
            depth=np.concatenate([m.depth for m in models]),
            features=features,
            logistic=models[0].logistic,
        )

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the prediction of each model (rows, models), in XGBoost's precision."""
        total = np.array([self._row_sums(row) for row in np.ascontiguousarray(X)])
        result = 1.0 / (1.0 + np.exp(-total)) if self.logistic else total
        return result.astype(np.float64)

    def sums(self, X: np.ndarray) -> np.ndarray:
        """Return each model's sum for many rows without missing values (rows, models)."""
        inputs = np.hstack([X, X, np.full((len(X), 1), -np.inf, dtype=np.float32)])
        node, row = self.roots[None, :], np.arange(len(X))[:, None]
        for _ in range(self.depth.max()):
            node = self.left[node] + (inputs[row, self.slot[node]] >= self.bound[node])
        return np.add.reduceat(self.leaf[node], self.first[:-1], axis=1).astype(np.float64)

    def _row_sums(self, row: np.ndarray) -> np.ndarray:
        """Return each model's sum of leaves, added in XGBoost's order."""
        n = self.features
        inputs = np.empty(2 * n + 1, dtype=np.float32)
        inputs[:n] = inputs[n:-1] = row
        inputs[-1] = -np.inf
        if (missing := np.isnan(row)).any():
            inputs[:n][missing], inputs[n:-1][missing] = np.inf, -np.inf
        node = self.roots
        for _ in range(self.depth.max()):
            node = self.left[node] + (inputs[self.slot[node]] >= self.bound[node])
        terms = self.leaf[node]
        parts = zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True)
        return np.array([np.add.accumulate(terms[start:end])[-1] for start, end in parts])

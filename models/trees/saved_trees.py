"""Checks saved trees before a library reads them: a wrong node crashes it, a cycle never ends."""

import numpy as np

from foretune.models.trees.ubjson import read_ubjson

MAX_DEPTH = 1000  # maximum levels of a tree
MAX_COLUMNS = 1 << 20
ROOT_PARENT = 2**31 - 1  # XGBoost's parent of a root
ONE_OUTPUT = {"num_class": "0", "num_target": "1"}
"""XGBoost's parameters of a model with one output."""


def check_boosted_trees(data: bytes) -> None:
    """Check that XGBoost can load a model in UBJSON, and predict with it.

    Raises ValueError, LookupError, TypeError, AttributeError if it is damaged, or of another kind.
    """
    learner = read_ubjson(data)["learner"]
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
    sizes = np.array([len(tree["left_children"]) for tree in model["trees"]])
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
    left, right, column, parents = (
        np.concatenate([tree[field] for tree in model["trees"]]).astype(np.int64)
        for field in ("left_children", "right_children", "split_indices", "parents")
    )
    inner = left >= 0
    if (right[~inner] >= 0).any():
        raise ValueError("a node has one child")
    require_trees(left, right, inner, sizes)
    require_known_columns(column[inner], int(model_parameters["num_feature"]))
    starts = np.cumsum(sizes) - sizes
    first, indices = np.repeat(starts, sizes)[inner], np.arange(len(left))[inner]
    same = (parents[child[inner] + first] == indices - first for child in (left, right))
    if not all(map(np.all, same)) or (parents[starts] != ROOT_PARENT).any():
        raise ValueError("a tree's parents are not those of its children")


_PER_NODE = {
    **dict.fromkeys(("left_children", "right_children", "split_indices", "parents"), ">i4"),
    **dict.fromkeys(("default_left", "split_type"), "|u1"),
    **dict.fromkeys(("split_conditions", "base_weights", "loss_changes", "sum_hessian"), ">f4"),
}
"""Required dtypes; XGBoost reinterprets arrays of other types."""
_CATEGORIES = tuple(f"categories{part}" for part in ("", "_nodes", "_segments", "_sizes"))


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

"""Saved trees: arrays of nodes, checked before a library reads them.

A wrong node crashes the library, and a cycle never ends.
"""

import json
from collections.abc import Mapping
from struct import pack
from typing import Any

import numpy as np

from foretune.support.files import parse_json

MAX_DEPTH = 1000
"""Maximum levels of a tree."""
MAX_COLUMNS = 1 << 20
NO_CHILD = -1
"""Child of a leaf."""
ROOT_PARENT = 2**31 - 1
"""XGBoost's parent of a root."""
ONE_OUTPUT = {"num_class": "0", "num_target": "1"}
"""XGBoost's parameters of a model with one output."""
PARAMETERS = ("learner_model_param", "objective")
"""Parameters of XGBoost's learner that predictions need."""
FIELDS = {
    "left_children": ">i4",
    "right_children": ">i4",
    "split_indices": ">i4",
    "split_conditions": ">f4",
    "sum_hessian": ">f4",
    "default_left": "|u1",
}
"""Fields of XGBoost's nodes that prediction or Shapley values read, and their types."""
ZERO_FIELDS = {"base_weights": ">f4", "loss_changes": ">f4", "split_type": "|u1"}
"""Fields that they do not read, and the type of a split: 0 is numeric."""
CATEGORY_FIELDS = {
    "categories": ">i4",
    "categories_nodes": ">i4",
    "categories_segments": ">i8",
    "categories_sizes": ">i8",
}
NO_CATEGORIES = {field: np.zeros(0, dtype) for field, dtype in CATEGORY_FIELDS.items()}
"""No split is categorical."""
TREE_PARAMETERS = {"num_deleted": "0", "size_leaf_vector": "1"}
"""Parameters of every tree."""
MARKS = {">i4": b"l", ">i8": b"L", ">f4": b"d", "|u1": b"U"}
"""Types in UBJSON."""


def boosted_arrays(booster: Any) -> dict[str, Any]:
    """Return an XGBoost model as arrays that `boosted_model` reads."""
    document = json.loads(bytes(booster.save_raw("json")))
    learner = document["learner"]
    parameters = {name: learner[name] for name in PARAMETERS}
    trees = learner["gradient_booster"]["model"]["trees"]
    arrays: dict[str, Any] = {
        "parameters": json.dumps({"version": document["version"], **parameters}),
        "sizes": [len(tree["parents"]) for tree in trees],
    }
    for field, dtype in FIELDS.items():
        arrays[field] = np.concatenate([tree[field] for tree in trees]).astype(dtype)
    return arrays


def boosted_model(data: Mapping[str, np.ndarray]) -> bytearray:
    """Return a model in UBJSON that XGBoost can load, and predict with.

    Raises ValueError or a reader's error if the arrays are damaged, or of another kind.
    """
    parameters = parse_json(str(data["parameters"]))
    learner = {name: parameters[name] for name in PARAMETERS}
    learner_parameters = learner["learner_model_param"]
    for name, value in ONE_OUTPUT.items():
        if learner_parameters.get(name, value) != value:
            raise ValueError("the model has more than one output")
    n_columns = learner_parameters["num_feature"]

    # The nodes of all trees, one after the other. What nothing reads is zero.
    sizes = data["sizes"]
    nodes = require_fields(data, FIELDS)
    left = nodes["left_children"]
    right = nodes["right_children"]
    is_inner = require_trees(sizes, int(n_columns), left, right, nodes["split_indices"])
    nodes["parents"] = _parents(sizes, left, right, is_inner)
    for field, dtype in ZERO_FIELDS.items():
        nodes[field] = np.zeros(len(left), dtype)

    # A document per tree.
    starts_of_others = np.cumsum(sizes)[:-1]
    nodes_of_trees = {field: np.split(values, starts_of_others) for field, values in nodes.items()}
    trees = []
    for number, size in enumerate(sizes.tolist()):
        tree: dict[str, Any] = {field: parts[number] for field, parts in nodes_of_trees.items()}
        tree |= NO_CATEGORIES
        tree["id"] = number
        tree["tree_param"] = {
            **TREE_PARAMETERS,
            "num_feature": n_columns,
            "num_nodes": str(size),
        }
        trees.append(tree)

    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [*range(len(trees) + 1)],
        "tree_info": [0] * len(trees),
        "trees": trees,
    }
    learner |= {"attributes": {}, "feature_names": [], "feature_types": []}
    learner["gradient_booster"] = {"name": "gbtree", "model": model}
    return bytearray(_ubjson({"version": parameters["version"], "learner": learner}))


def _parents(
    sizes: np.ndarray, left: np.ndarray, right: np.ndarray, is_inner: np.ndarray
) -> np.ndarray:
    """Return the parent of each node, an index within its tree; a root has `ROOT_PARENT`."""
    root_of_node = _roots(sizes)
    number_in_tree = np.arange(len(left)) - root_of_node
    parents = np.full(len(left), ROOT_PARENT, ">i4")
    for child in (left, right):
        node_of_child = (child + root_of_node)[is_inner]
        parents[node_of_child] = number_in_tree[is_inner]
    return parents


def _roots(sizes: np.ndarray) -> np.ndarray:
    """Return the root of each node's tree."""
    return np.repeat(np.cumsum(sizes) - sizes, sizes)


def _ubjson(value: Any) -> bytes:
    """Return a value in UBJSON (ubjson.org), as XGBoost writes it."""
    if isinstance(value, dict):
        # Names are texts without their mark.
        entries = [_ubjson(name)[1:] + _ubjson(entry) for name, entry in value.items()]
        return b"{" + b"".join(entries) + b"}"
    if isinstance(value, str):
        text = value.encode()
        return b"S" + _ubjson(len(text)) + text
    if isinstance(value, np.ndarray):
        mark = MARKS[value.dtype.str]
        return b"[$" + mark + b"#" + _ubjson(len(value)) + value.tobytes()
    if isinstance(value, list):
        return b"[#" + _ubjson(len(value)) + b"".join(map(_ubjson, value))
    return pack(">cq", b"L", value)


def require_fields(
    data: Mapping[str, np.ndarray], types: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the fields of nodes.

    Raises ValueError unless they have these types, and one length.
    """
    fields = {name: data[name] for name in types}
    length = min(map(len, fields.values()))
    for name, values in fields.items():
        if values.dtype != types[name] or values.shape != (length,):
            raise ValueError(f"{name} is not of its type or length")
    return fields


def require_trees(
    sizes: np.ndarray, columns: int, left: np.ndarray, right: np.ndarray, column: np.ndarray
) -> np.ndarray:
    """Return which nodes have children; all trees are concatenated.

    Raises ValueError unless they form trees of at most `MAX_DEPTH` levels that use features 0 …
    ``columns`` - 1. Children are indices within their tree, whose first node is its root.
    """
    n_nodes = len(left)
    are_sizes = sizes.dtype.kind == "i" and ((sizes > 0) & (sizes <= n_nodes)).all()
    if not (are_sizes and sizes.sum() == n_nodes == len(right)):
        raise ValueError("a tree has incomplete nodes")
    is_inner = left != NO_CHILD
    if (right[~is_inner] != NO_CHILD).any():
        raise ValueError("a node has one child")
    is_no_feature = (column < 0) | (column >= columns)
    if not 0 < columns <= MAX_COLUMNS or is_no_feature[is_inner].any():
        raise ValueError("a tree uses features that do not exist")

    # Children come after their parents, in the same tree: so there is no cycle.
    root_of_node = _roots(sizes)
    number_in_tree = np.arange(n_nodes) - root_of_node
    children = np.stack([left, right]).astype(np.int64)  # (2, nodes), indices within a tree
    is_outside = (children <= number_in_tree) | (children >= np.repeat(sizes, sizes))
    if is_outside[:, is_inner].any():
        raise ValueError("a tree's child does not come after its parent")
    children += root_of_node
    n_parents = np.bincount(children[:, is_inner].ravel(), minlength=1)
    if n_parents.max(initial=0) > 1:
        raise ValueError("a tree's child has two parents")

    # Level by level, from the roots of all trees down.
    level = np.cumsum(sizes) - sizes
    for _ in range(MAX_DEPTH):
        inner_nodes = level[is_inner[level]]
        if not len(inner_nodes):
            return is_inner
        level = children[:, inner_nodes].ravel()
    raise ValueError(f"a tree is more than {MAX_DEPTH} levels deep")

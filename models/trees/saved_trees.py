"""Saved trees: arrays of nodes, checked before a library reads them.

A wrong node crashes the library, and a cycle never ends.
"""

import json
from collections.abc import Mapping
from struct import pack
from typing import Any

import numpy as np

from foretune.support.files import parse_json

MAX_DEPTH = 1000  # maximum levels of a tree
MAX_COLUMNS = 1 << 20
NO_CHILD = -1  # child of a leaf
ROOT_PARENT = 2**31 - 1  # XGBoost's parent of a root
ONE_OUTPUT = {"num_class": "0", "num_target": "1"}
"""XGBoost's parameters of a model with one output."""
PARAMETERS = ("learner_model_param", "objective")
"""Parameters of XGBoost's learner that predictions need."""
FIELDS = {
    **dict.fromkeys(("left_children", "right_children", "split_indices"), ">i4"),
    **dict.fromkeys(("split_conditions", "sum_hessian"), ">f4"),
    "default_left": "|u1",
}
"""Fields of XGBoost's nodes that prediction or Shapley values read, and their types."""
ZERO_FIELDS = {"base_weights": ">f4", "loss_changes": ">f4", "split_type": "|u1"}
"""Fields that they do not read, and the type of a split: 0 is numeric."""
CATEGORY_FIELDS = {"": ">i4", "_nodes": ">i4", "_segments": ">i8", "_sizes": ">i8"}
NO_CATEGORIES = {f"categories{part}": np.zeros(0, t) for part, t in CATEGORY_FIELDS.items()}
TREE = {"num_deleted": "0", "size_leaf_vector": "1"}  # parameters of every tree
MARKS = {">i4": b"l", ">i8": b"L", ">f4": b"d", "|u1": b"U"}  # types in UBJSON


def boosted_arrays(booster: Any) -> dict[str, Any]:
    """Return an XGBoost model as arrays that `boosted_model` reads."""
    document = json.loads(bytes(booster.save_raw("json")))
    learner = document["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    parameters = {name: learner[name] for name in PARAMETERS}
    return {
        "parameters": json.dumps({"version": document["version"], **parameters}),
        "sizes": [len(tree["parents"]) for tree in trees],
        **{
            field: np.concatenate([tree[field] for tree in trees]).astype(dtype)
            for field, dtype in FIELDS.items()
        },
    }


def boosted_model(data: Mapping[str, np.ndarray]) -> bytearray:
    """Return a model in UBJSON that XGBoost can load, and predict with.

    Raises ValueError or a reader's error if the arrays are damaged, or of another kind.
    """
    parameters, sizes = parse_json(str(data["parameters"])), data["sizes"]
    learner = {name: parameters[name] for name in PARAMETERS}
    learner_parameters = learner["learner_model_param"]
    if any(learner_parameters.get(name, value) != value for name, value in ONE_OUTPUT.items()):
        raise ValueError("the model has more than one output")
    columns, nodes = learner_parameters["num_feature"], require_fields(data, FIELDS)
    left, right = nodes["left_children"], nodes["right_children"]
    inner = require_trees(sizes, int(columns), left, right, nodes["split_indices"])
    starts = np.cumsum(sizes) - sizes
    first, parents = np.repeat(starts, sizes), np.full(len(left), ROOT_PARENT, ">i4")
    for child in (left, right):
        parents[(child + first)[inner]] = (np.arange(len(left)) - first)[inner]
    nodes |= {"parents": parents, **{n: np.zeros(len(left), t) for n, t in ZERO_FIELDS.items()}}
    parts = {field: np.split(values, starts[1:]) for field, values in nodes.items()}
    trees = [
        {
            **{field: of_trees[i] for field, of_trees in parts.items()},
            **NO_CATEGORIES,
            "id": i,
            "tree_param": {**TREE, "num_feature": columns, "num_nodes": str(size)},
        }
        for i, size in enumerate(sizes.tolist())
    ]
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [*range(len(trees) + 1)],
        "tree_info": [0] * len(trees),
        "trees": trees,
    }
    learner |= {"attributes": {}, "feature_names": [], "feature_types": []}
    learner["gradient_booster"] = {"name": "gbtree", "model": model}
    return bytearray(_ubjson({"version": parameters["version"], "learner": learner}))


def _ubjson(value: Any) -> bytes:
    """Return a value in UBJSON (ubjson.org), as XGBoost writes it."""
    if isinstance(value, dict):
        return b"{%s}" % b"".join(_ubjson(n)[1:] + _ubjson(v) for n, v in value.items())
    if isinstance(value, str):
        text = value.encode()
        return b"S" + _ubjson(len(text)) + text
    if isinstance(value, np.ndarray):
        return b"[$%s#%s%s" % (MARKS[value.dtype.str], _ubjson(len(value)), value.tobytes())
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
    complete = sizes.dtype.kind == "i" and ((sizes > 0) & (sizes <= len(left))).all()
    if not (complete and sizes.sum() == len(left) == len(right)):
        raise ValueError("a tree has incomplete nodes")
    inner, level = left != NO_CHILD, np.cumsum(sizes) - sizes
    if (right[~inner] != NO_CHILD).any():
        raise ValueError("a node has one child")
    if not 0 < columns <= MAX_COLUMNS or ((column < 0) | (column >= columns))[inner].any():
        raise ValueError("a tree uses features that do not exist")
    first, ends = np.repeat(level, sizes), np.repeat(sizes, sizes)
    children = np.stack([left, right]).astype(np.int64)
    if ((children <= np.arange(len(left)) - first) | (children >= ends))[:, inner].any():
        raise ValueError("a tree's child does not come after its parent")
    children += first
    if np.bincount(children[:, inner].ravel(), minlength=1).max(initial=0) > 1:
        raise ValueError("a tree's child has two parents")
    for _ in range(MAX_DEPTH):
        level = level[inner[level]]
        if not len(level):
            return inner
        level = children[:, level].ravel()
    raise ValueError(f"a tree is more than {MAX_DEPTH} levels deep")

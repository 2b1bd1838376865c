"""Boosted trees as plain arrays, read from XGBoost's own format."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from foretune.models.trees.compiled_trees import CompiledTrees

ARRAYS = {
    "left_children": (b"l", ">i4"), "right_children": (b"l", ">i4"),
    "split_indices": (b"l", ">i4"), "split_conditions": (b"d", ">f4"),
    "default_left": (b"U", "u1"),
}  # fmt: skip
"""What a node consists of -> how UBJSON says its type, and NumPy."""


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees, one after the other; a leaf is its own left child.

    A row stands twice beside itself: where a value is missing, the first copy says infinite (goes
    right), the second minus infinite (goes left), and a node looks at the copy it needs.

    Attributes:
        left: the child for values below ``bound``; the other one is the next.
        place: where in the doubled row the value stands.
        bound: of the values that go left; infinite in a leaf.
        leaf: what a leaf adds.
        roots: the first node of each tree.
        depth: of the deepest.
        features: columns of a row.
        base: what the trees' sum starts from.
        logistic: whether the result is a probability.
    """

    left: np.ndarray
    place: np.ndarray
    bound: np.ndarray
    leaf: np.ndarray
    roots: np.ndarray
    depth: int
    features: int
    base: float
    logistic: bool

    @classmethod
    def of(cls, booster: Any) -> Self | None:
        """Return the trees of an XGBoost booster; None if they are of a kind not known here."""
        raw = bytes(booster.save_raw("ubj"))
        parts = {name: _arrays(raw, name, *kind) for name, kind in ARRAYS.items()}
        sizes = [len(tree) for tree in parts["left_children"]]
        learner = json.loads(booster.save_config())["learner"]
        objective = learner["objective"]["name"]
        known = objective in ("reg:squarederror", "binary:logistic")
        alike = all([len(tree) for tree in part] == sizes for part in parts.values())
        if not (known and alike and len(sizes) == booster.num_boosted_rounds() > 0):
            return None
        left, right, column, bound, default = (np.concatenate(part) for part in parts.values())
        inner, columns = left >= 0, booster.num_features()
        if (right[inner] != left[inner] + 1).any():
            return None
        roots = np.cumsum(sizes) - sizes
        left = np.where(inner, left + np.repeat(roots, sizes), np.arange(len(left)))
        base = float(np.ravel(json.loads(learner["learner_model_param"]["base_score"]))[0])
        logistic = objective == "binary:logistic"
        return cls(
            left=left,
            place=np.where(inner, column + columns * default.astype(np.int64), 2 * columns),
            bound=np.where(inner, bound, np.inf).astype(np.float32),
            leaf=np.where(inner, 0.0, bound).astype(np.float32),
            roots=roots,
            depth=_depth(left, roots),
            features=columns,
            base=float(np.log(base / (1.0 - base))) if logistic else base,
            logistic=logistic,
        )

    @cached_property
    def compiled(self) -> "CompiledTrees | None":
        """The form for many rows; None if Numba is not installed or the trees are too deep."""
        try:
            from foretune.models.trees.compiled_trees import CompiledTrees
        except ImportError:
            return None
        return CompiledTrees.of(self)

    def places(self, features: int) -> np.ndarray:
        """Return ``place`` in a row of so many features, these trees' own before the others."""
        copy, column = np.divmod(self.place, self.features)
        place: np.ndarray = copy * features + column
        return place


def _arrays(raw: bytes, name: str, code: bytes, dtype: str) -> list[np.ndarray]:
    """Return every array called ``name`` in a UBJSON document, in order."""
    mark, found, at = name.encode() + b"[$" + code + b"#L", [], 0
    while (at := raw.find(mark, at)) >= 0:
        at += len(mark)
        count = int.from_bytes(raw[at : at + 8], "big")
        values = np.frombuffer(raw, dtype, count, at + 8)
        found.append(values.astype(values.dtype.newbyteorder("=")))
        at += 8 + values.nbytes
    return found


def _depth(left: np.ndarray, roots: np.ndarray) -> int:
    depth, level = 0, roots
    while len(level := level[left[level] != level]):
        level = np.concatenate([left[level], left[level] + 1])
        depth += 1
    return depth

"""Splits: which rows are held out together.

``random`` holds out single rows, as most of the literature does: other configurations of the same
problem are in training. ``grouped`` holds out whole problems (what a user who tunes a new problem
will see) or whole devices.
"""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of

Split = Literal["random", "grouped"]
SPLITS: tuple[Split, ...] = get_args(Split)
Group = Literal["problem", "device"]
GROUPS: tuple[Group, ...] = get_args(Group)
FOLDS = 5


def groups_of(runs: pd.DataFrame, group: Group = "problem") -> np.ndarray:
    """Return an integer per row: the same within a problem on one device, or within a device."""
    keys = ["device", *(columns_of(runs, "problem") if group == "problem" else [])]
    return runs.groupby(keys, sort=False, dropna=False, observed=True).ngroup().to_numpy()


def fold_of_rows(
    runs: pd.DataFrame, split: Split, seed: int = 0, group: Group = "problem"
) -> np.ndarray | None:
    """Return the fold (0 … 4) in which each row is held out; None if the split is impossible.

    A grouped split needs at least two groups; with fewer than five each is a fold of its own.
    """
    rng = np.random.default_rng(seed)
    units = groups_of(runs, group) if split == "grouped" else np.arange(len(runs))
    distinct = np.unique(units)
    if len(distinct) < 2:
        return None
    folds = min(FOLDS, len(distinct))
    fold_of_unit = np.empty(int(distinct.max()) + 1, dtype=int)
    fold_of_unit[rng.permutation(distinct)] = np.arange(len(distinct)) % folds
    return fold_of_unit[units]


Learn = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Fits on ``X, y`` and predicts ``X_new``."""


def out_of_fold(learn: Learn, X: np.ndarray, y: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return predictions of every row by a model that did not see its fold."""
    prediction = np.empty(len(y))
    for fold in np.unique(folds):
        held_out = folds == fold
        prediction[held_out] = learn(X[~held_out], y[~held_out], X[held_out])
    return prediction

"""Splits: which rows are held out together.

``random`` holds out single rows, as most of the literature does: other configurations of the same
problem are in training. ``grouped`` holds out whole problems on all devices, as for a user who
tunes a new problem, or groups by the named columns. ``device`` holds out whole devices, ``time``
the latest fifth.
"""

from typing import Literal, get_args

import numpy as np
import pandas as pd

from foretune.datasets.schema import columns_of
from foretune.errors import UnknownName

Split = Literal["random", "grouped", "device", "time"]
SPLITS: tuple[Split, ...] = get_args(Split)
DEFAULT_SPLITS: tuple[Split, ...] = ("random", "grouped", "device")
FOLDS = 5
NO_FOLD = -1
"""The fold of rows that are never tested."""


def group_columns(runs: pd.DataFrame, group: str = "problem") -> list[str]:
    """Return the columns that define a group.

    Raises UnknownName if there is no such column. ``group`` is ``problem`` (on any device),
    ``task`` (a problem on one device), ``device``, or run-table columns separated by commas, such
    as ``problem.N,problem.K``.
    """
    problem_columns = columns_of(runs, "problem")
    if group == "problem":
        return problem_columns
    if group == "task":
        return ["device", *problem_columns]
    columns = [column.strip() for column in group.split(",")]
    for column in columns:
        if column not in runs:
            raise UnknownName("group", column, ["problem", *map(str, runs.columns)])
    return columns


def group_numbers(runs: pd.DataFrame, group: str) -> np.ndarray:
    """Return an integer per row, equal within a group (see `group_columns`)."""
    columns = group_columns(runs, group)
    if not columns:
        return np.zeros(len(runs), dtype=int)
    return runs.groupby(columns, sort=False, dropna=False, observed=True).ngroup().to_numpy()


def task_numbers(runs: pd.DataFrame) -> np.ndarray:
    """Return an integer per row, equal within a task, whose configurations compete."""
    return group_numbers(runs, "task")


def fold_of_rows(
    runs: pd.DataFrame, split: Split, seed: int = 0, group: str = "problem", folds: int = FOLDS
) -> np.ndarray | None:
    """Return the fold in which each row is held out; None if the split is impossible.

    A split by groups needs at least two; with fewer than ``folds``, each is a fold. The split by
    time has one fold, and `NO_FOLD` for the rows before it.
    """
    if split == "time":
        return _latest_fifth(runs)
    if split == "random":
        groups = np.arange(len(runs))
    else:
        groups = group_numbers(runs, "device" if split == "device" else group)
    distinct = np.unique(groups)
    if len(distinct) < 2:
        return None

    # Groups are dealt to folds in random order.
    n_folds = min(folds, len(distinct))
    shuffled = np.random.default_rng(seed).permutation(distinct)
    fold_of_group = np.empty(int(distinct.max()) + 1, dtype=int)
    fold_of_group[shuffled] = np.arange(len(distinct)) % n_folds
    return fold_of_group[groups]


def _latest_fifth(runs: pd.DataFrame) -> np.ndarray | None:
    """Return fold 0 for the latest rows; None if times are unknown, or all the same."""
    if "recorded_at" not in runs or runs["recorded_at"].isna().any():
        return None
    rank = runs["recorded_at"].astype(str).rank(method="min").to_numpy()
    is_latest = rank > 0.8 * len(runs)
    if is_latest.all() or not is_latest.any():
        return None
    return np.where(is_latest, 0, NO_FOLD)

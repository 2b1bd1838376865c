"""How much a table can teach: with few problems, rules take the place of learned models.

With many problems, weights and widths are learned row by row, and rows are held out in every way in
which a row can be new. With few problems, features would only name the problems. So whole problems
are held out, all of them count equally, weights are the same in all rows, and the interval's width
follows a rule (docs/decisions/few-problems.md).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from foretune.features.featureset import FeatureSet
from foretune.models.distinct_problems import exact_problems, has_few_problems
from foretune.models.expert_predictions import ExpertPredictions, HeldOutPredictions
from foretune.models.holdouts import device_holdouts, mixed_holdouts, problem_holdouts
from foretune.models.interval import Interval, LearnedInterval, RuleInterval
from foretune.models.splits import fold_of_rows
from foretune.models.stack import ConvexStack, fit_stack_by_row
from foretune.models.t_width import width_of_median
from foretune.models.target_names import Target
from foretune.models.target_table import TargetTable
from foretune.models.targets import TargetScale

HOLDOUTS = 3
MORE_HOLDOUTS = 6
"""Number of hold-outs with many problems: more in small tables, where they are cheap."""
LAW_HOLDOUTS = 4
"""Maximum number with a learned law, beside the largest problems."""
SMALL_TABLE_ROWS = 5_000
"""Tables up to this size get `MORE_HOLDOUTS`."""
MIN_NEIGHBOR_ROWS = 200
"""Minimum rows for neighbors to be used."""
MIN_NEIGHBOR_SHARE = 0.5
"""Minimum share of rows with neighbors for neighbors to be used."""


class Regime(Protocol):
    """Decides scale, hold-outs, weights and interval.

    ``problems`` are the numbers of the rows' problems.
    """

    def fit_scale(
        self,
        target: Target,
        features: FeatureSet,
        rows: pd.DataFrame,
        log_target: np.ndarray,
        problems: np.ndarray,
    ) -> TargetScale:
        """Return the unit of the target, calibrated on the rows."""

    def uses_neighbors(self, table: TargetTable) -> bool:
        """Return whether the interpolation between measured neighbors is an expert."""

    def holdouts(
        self, table: TargetTable, with_neighbors: bool, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return masks of rows: those of a mask are held out together."""

    def fit_stack(
        self, predictions: ExpertPredictions, true_value: np.ndarray, problems: np.ndarray
    ) -> ConvexStack:
        """Return the weights of experts, fitted to held-out rows."""

    def fit_interval(
        self,
        held_out: HeldOutPredictions,
        errors: np.ndarray,
        octaves_outside: np.ndarray,
        problems: np.ndarray,
        log_target: np.ndarray,
    ) -> Interval:
        """Return the interval, fitted to the ``errors`` of held-out rows.

        ``octaves_outside`` is their distance from the range of the rows that were not held out,
        ``log_target`` the log of their target.
        """


def choose_regime(rows: pd.DataFrame, problems: np.ndarray, seed: int) -> Regime:
    """Return the regime of ``rows``; ``problems`` are their distinct problems."""
    if has_few_problems(problems, exact_problems(rows)):
        return FewProblems()
    return ManyProblems(seed)


@dataclass(frozen=True)
class ManyProblems:
    """Weights and widths by row; neighbors; hold-outs of every kind."""

    seed: int

    def fit_scale(
        self,
        target: Target,
        features: FeatureSet,
        rows: pd.DataFrame,
        log_target: np.ndarray,
        problems: np.ndarray,
    ) -> TargetScale:
        """Return the unit of the target; all rows count equally."""
        return TargetScale.fit(target, features, rows, log_target)

    def uses_neighbors(self, table: TargetTable) -> bool:
        """Return whether enough rows have neighbors."""
        if len(table) < MIN_NEIGHBOR_ROWS or not table.neighbor_index.axes:
            return False
        neighbors = table.neighbor_index.neighbor_features(
            table.positions, table.y, table.positions
        )
        has_neighbor = np.isfinite(neighbors[:, -1])
        return bool(has_neighbor.mean() >= MIN_NEIGHBOR_SHARE)

    def holdouts(
        self, table: TargetTable, with_neighbors: bool, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return mixed hold-outs and devices; folds of problems if there are no neighbors."""
        count = MORE_HOLDOUTS if len(table) <= SMALL_TABLE_ROWS else HOLDOUTS
        if table.law is not None:  # the largest problems are held out, too
            count = min(count, LAW_HOLDOUTS)
        if with_neighbors:
            mixed = mixed_holdouts(table.positions, table.holdout_axes, count, rng)
            return [*mixed, *device_holdouts(table.rows, rng)]

        folds = fold_of_rows(table.rows, "grouped", self.seed, "task", count)
        if folds is None:
            folds = fold_of_rows(table.rows, "random", self.seed, folds=count)
        assert folds is not None  # at least five rows
        return [folds == fold for fold in np.unique(folds)]

    def fit_stack(
        self, predictions: ExpertPredictions, true_value: np.ndarray, problems: np.ndarray
    ) -> ConvexStack:
        """Return weights by row."""
        return fit_stack_by_row(predictions, true_value, self.seed)

    def fit_interval(
        self,
        held_out: HeldOutPredictions,
        errors: np.ndarray,
        octaves_outside: np.ndarray,
        problems: np.ndarray,
        log_target: np.ndarray,
    ) -> Interval:
        """Return an interval whose width is learned."""
        return LearnedInterval.fit(
            held_out.predictions,
            errors,
            holdouts=held_out.holdout_numbers,
            octaves_outside=octaves_outside,
            seed=self.seed,
        )


@dataclass(frozen=True)
class FewProblems:
    """Whole problems held out, each counts equally; convex weights; width by a rule."""

    def fit_scale(
        self,
        target: Target,
        features: FeatureSet,
        rows: pd.DataFrame,
        log_target: np.ndarray,
        problems: np.ndarray,
    ) -> TargetScale:
        """Return the unit of the target; all problems count equally."""
        return TargetScale.fit(target, features, rows, log_target, problems)

    def uses_neighbors(self, table: TargetTable) -> bool:
        """Return False: interpolation between so few problems is no expert."""
        return False

    def holdouts(
        self, table: TargetTable, with_neighbors: bool, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return folds of whole problems, and devices."""
        return [*problem_holdouts(table.problems, rng), *device_holdouts(table.rows, rng)]

    def fit_stack(
        self, predictions: ExpertPredictions, true_value: np.ndarray, problems: np.ndarray
    ) -> ConvexStack:
        """Return weights that are the same in all rows; all problems count equally."""
        rows_of_problem = np.bincount(problems)
        row_weight = 1.0 / rows_of_problem[problems]
        return ConvexStack.fit(predictions, true_value, row_weight)

    def fit_interval(
        self,
        held_out: HeldOutPredictions,
        errors: np.ndarray,
        octaves_outside: np.ndarray,
        problems: np.ndarray,
        log_target: np.ndarray,
    ) -> Interval:
        """Return an interval whose width follows a rule."""
        return RuleInterval.fit(
            held_out.predictions.disagreement,
            errors,
            problems=problems,
            widest=width_of_median(log_target, problems),
        )

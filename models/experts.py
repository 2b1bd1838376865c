"""The experts on one target.

Boosted trees (or a forest) on the features come first. Where most rows have measured neighbors, a
second tree model corrects the interpolation between them, and both the corrected and the plain
interpolation are experts. Elsewhere a smooth model may fit the features. The calibrated roofline is
an expert without a model: 0 on this scale. If nothing is known of the kernel's work, a learned law
has experts of its own (`foretune.models.law_experts`). `foretune.models.stack` weights them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from foretune.models.law_experts import LawExperts
from foretune.models.learned_law import LearnedLaw
from foretune.models.neighbors import INTERPOLATION
from foretune.models.smooth_expert import SmoothExpert
from foretune.models.target_table import TargetTable
from foretune.models.trees.regressor import Regressor

N_FOLDS = 5
"""Number of folds whose training rows do not see each other as neighbors."""
ONE_SIDED_SHARE = 0.15
"""Share of training rows whose upper neighbors are hidden, to imitate extrapolation."""
PARTS = ("tree", "corrected")
"""Attributes of `Experts` that are tree models, saved in a file of this name."""
SMOOTH_FILE = "smooth.npz"

RegressorFactory = Callable[[], Regressor]


@dataclass
class Experts:
    """The fitted models.

    Attributes:
        tree: sees the features.
        corrected: predicts the error of the interpolation from features and neighbors; None without
            neighbors.
        smooth: sees the features; None if there is none.
        has_roofline: whether the calibrated roofline is an expert.
        on_law: the experts of a learned law; None without one.
    """

    tree: Regressor
    corrected: Regressor | None = None
    smooth: SmoothExpert | None = None
    has_roofline: bool = False
    on_law: LawExperts | None = None

    @classmethod
    def fit(
        cls,
        make_regressor: RegressorFactory,
        table: TargetTable,
        *,
        rows: np.ndarray,
        neighbor_rows: np.ndarray | None,
        smooth: SmoothExpert | None,
        smooth_on_law: SmoothExpert | None = None,
        rng: np.random.Generator,
    ) -> Self:
        """Fit to the ``rows`` of a table, with neighbors among ``neighbor_rows`` unless it is None.

        Both are row numbers. ``smooth`` and ``smooth_on_law`` have the smooth experts'
        hyperparameters.
        """
        X = table.X[rows]
        y = table.y[rows]
        experts = cls(make_regressor().fit(X, y), has_roofline=table.has_roofline)
        if smooth is not None:
            experts.smooth = smooth.refit(X, y, rng)

        # A law is one of times: its experts learn from milliseconds, not from what is left of them.
        if table.law is not None:
            log_ms = y + table.log_divisor[rows]
            experts.on_law = LawExperts.fit(
                make_regressor,
                table.law,
                X,
                table.law_inputs[rows],
                log_ms,
                problems=table.problems[rows],
                smooth=smooth_on_law,
                rng=rng,
            )
        if neighbor_rows is None:
            return experts

        # The correction is learned on rows that see the neighbors they would have if held out.
        neighbors = _neighbors_if_held_out(table, rows=rows, neighbor_rows=neighbor_rows, rng=rng)
        interpolation = neighbors[:, INTERPOLATION]
        has_neighbor = np.isfinite(interpolation)
        if has_neighbor.any():
            inputs = np.hstack([X[has_neighbor], neighbors[has_neighbor]])
            error = y[has_neighbor] - interpolation[has_neighbor]
            experts.corrected = make_regressor().fit(inputs, error)
        return experts

    def predict(
        self,
        X: np.ndarray,
        neighbors: np.ndarray | None,
        law_inputs: np.ndarray | None = None,
        log_divisor: np.ndarray | float = 0.0,
    ) -> np.ndarray:
        """Return the log of the target over its divisor by each expert (rows, experts).

        The order is trees, corrected interpolation or smooth expert, plain interpolation, roofline,
        those of the law; missing ones are left out. Rows without neighbors repeat the trees.
        ``law_inputs`` and ``log_divisor`` are needed with a learned law only (`TargetTable`).

        Raises ValueError if there is a law, but no inputs of it: the weights are for all experts.
        """
        tree = self.tree.predict(X)
        columns = [tree]
        if neighbors is not None:
            interpolation = neighbors[:, INTERPOLATION].astype(np.float64)
            corrected = interpolation
            # In a hold-out that leaves no row a neighbor, no correction can be learned. The plain
            # interpolation takes its place: all hold-outs need the same experts for their weights.
            if self.corrected is not None:
                inputs = np.concatenate([X, neighbors], axis=1)
                corrected = self.corrected.predict(inputs) + interpolation
            no_neighbor = np.isnan(interpolation)
            columns.append(np.where(no_neighbor, tree, corrected))
            columns.append(np.where(no_neighbor, tree, interpolation))
        elif self.smooth is not None:
            columns.append(self.smooth.predict(X))
        if self.has_roofline:
            columns.append(np.zeros(len(X)))
        if self.on_law is not None:
            if law_inputs is None:
                raise ValueError("the experts of a learned law need its inputs")
            columns += [log_ms - log_divisor for log_ms in self.on_law.predict(X, law_inputs)]
        return np.array(columns).T

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for part in self.parts:
            model = getattr(self, part)
            model.save(folder / f"{part}{model.suffix}")
        if self.smooth is not None:
            self.smooth.save(folder / SMOOTH_FILE)
        if self.on_law is not None:
            self.on_law.save(folder)

    @property
    def parts(self) -> list[str]:
        """The names of the fitted tree models."""
        return [part for part in PARTS if getattr(self, part) is not None]

    @classmethod
    def load(
        cls,
        folder: Path,
        regressor_class: type[Regressor],
        parts: Sequence[str],
        *,
        has_roofline: bool,
        law: LearnedLaw | None = None,
    ) -> Self:
        """Read the tree models ``parts``, any smooth expert and those of ``law``."""
        suffix = regressor_class.suffix
        models = {part: regressor_class.load(folder / f"{part}{suffix}") for part in parts}
        smooth_file = folder / SMOOTH_FILE
        smooth = SmoothExpert.load(smooth_file) if smooth_file.exists() else None
        on_law = None if law is None else LawExperts.load(folder, regressor_class, law)
        return cls(**models, smooth=smooth, has_roofline=has_roofline, on_law=on_law)


def _neighbors_if_held_out(
    table: TargetTable, *, rows: np.ndarray, neighbor_rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the neighbor features of ``rows`` as if each were held out in one random way.

    Each row gets one of the table's sets of axes. In its hold-out, its combination of values on
    these axes is new: the row sees only those of ``neighbor_rows`` that have other combinations.
    Rows without a neighbor are NaN. Shape (rows, features of neighbors).
    """
    n_features = len(table.neighbor_index.columns)
    neighbors = np.full((len(rows), n_features), np.nan, dtype=np.float32)
    holdout_of_row = rng.integers(len(table.holdout_axes), size=len(rows))
    is_one_sided = rng.random(len(rows)) < ONE_SIDED_SHARE

    for holdout, axes in enumerate(table.holdout_axes):
        # Whole combinations share a fold: five look-ups are enough for all rows.
        combination = table.positions.combination(axes)
        fold_of_combination = rng.integers(N_FOLDS, size=int(combination.max()) + 1)
        fold_of_row = fold_of_combination[combination[rows]]
        fold_of_neighbor = fold_of_combination[combination[neighbor_rows]]

        for fold in range(N_FOLDS):
            held_out = np.flatnonzero((holdout_of_row == holdout) & (fold_of_row == fold))
            visible = neighbor_rows[fold_of_neighbor != fold]
            if len(held_out) and len(visible):
                neighbors[held_out] = table.neighbor_features(
                    visible, rows[held_out], is_one_sided[held_out]
                )
    return neighbors

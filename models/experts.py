"""The experts on one target.

Boosted trees (or a forest) on the features come first. Where most rows have measured neighbors, a
second model corrects the interpolation between them; elsewhere a smooth model fits the features.
The interpolation and the unit (0 on this scale) are experts without a model. Without knowledge of
the kernel's work, a learned law has separate experts (`foretune.models.law_experts`).
`foretune.models.stack` weights them.
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

VIEW_FOLDS = 5
"""Training rows of the corrected interpolation are hidden from each other in this many folds."""
ONE_SIDED_SHARE = 0.15
"""Share of training rows whose upper neighbors are hidden, to imitate extrapolation."""
PARTS = ("tree", "corrected")
"""Attributes of `Experts` that are tree models, saved in a file of this name."""
SMOOTH_FILE = "smooth.npz"

RegressorFactory = Callable[[], Regressor]


@dataclass
class Experts:
    """The fitted models.

    ``tree`` sees the features; ``corrected`` sees features and neighbors, over the interpolation,
    and is None without neighbors; ``smooth`` sees the features, and is None with neighbors and with
    few rows. The unit is an expert if ``has_unit``. ``on_law`` are those of a learned law, if there
    is one.
    """

    tree: Regressor
    corrected: Regressor | None = None
    smooth: SmoothExpert | None = None
    has_unit: bool = False
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

        ``smooth`` and ``smooth_on_law`` have the smooth experts' hyperparameters.
        """
        X = table.X[rows]
        y = table.y[rows]
        experts = cls(make_regressor().fit(X, y), has_unit=table.has_unit)
        if smooth is not None:
            experts.smooth = smooth.refit(X, y, rng)
        if table.law is not None:
            experts.on_law = LawExperts.fit(
                make_regressor,
                table.law,
                X,
                table.law_inputs[rows],
                y + table.log_unit[rows],
                problems=table.problems[rows],
                smooth=smooth_on_law,
                rng=rng,
            )
        if neighbor_rows is None:
            return experts

        # The correction is learned on rows that see the neighbors they would have if held out.
        neighbors = _held_out_neighbors(table, known=neighbor_rows, rows=rows, rng=rng)
        interpolation = neighbors[:, INTERPOLATION]
        has_neighbor = np.isfinite(interpolation)
        if has_neighbor.any():
            inputs = np.hstack([X[has_neighbor], neighbors[has_neighbor]])
            correction = y[has_neighbor] - interpolation[has_neighbor]
            experts.corrected = make_regressor().fit(inputs, correction)
        return experts

    def predict(
        self,
        X: np.ndarray,
        neighbors: np.ndarray | None,
        law_inputs: np.ndarray | None = None,
        log_unit: np.ndarray | float = 0.0,
    ) -> np.ndarray:
        """Return the prediction of each expert (rows, experts).

        The order is trees, second expert, interpolation, unit, those of the law; missing ones are
        left out. Rows without neighbors repeat the trees. ``law_inputs`` are the law's, if there is
        one.
        """
        tree = self.tree.predict(X)
        columns = [tree]
        if neighbors is not None:
            interpolation = neighbors[:, INTERPOLATION].astype(np.float64)
            corrected = interpolation
            if self.corrected is not None:
                inputs = np.concatenate([X, neighbors], axis=1)
                corrected = self.corrected.predict(inputs) + interpolation
            no_neighbor = np.isnan(interpolation)
            columns.append(np.where(no_neighbor, tree, corrected))
            columns.append(np.where(no_neighbor, tree, interpolation))
        elif self.smooth is not None:
            columns.append(self.smooth.predict(X))
        if self.has_unit:
            columns.append(np.zeros(len(X)))
        if self.on_law is not None and law_inputs is not None:
            columns += [log_ms - log_unit for log_ms in self.on_law.predict(X, law_inputs)]
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
        has_unit: bool,
        law: LearnedLaw | None = None,
    ) -> Self:
        """Read the tree models ``parts``, any smooth expert and those of ``law``."""
        suffix = regressor_class.suffix
        models = {part: regressor_class.load(folder / f"{part}{suffix}") for part in parts}
        smooth_file = folder / SMOOTH_FILE
        smooth = SmoothExpert.load(smooth_file) if smooth_file.exists() else None
        on_law = None if law is None else LawExperts.load(folder, regressor_class, law)
        return cls(**models, smooth=smooth, has_unit=has_unit, on_law=on_law)


def _held_out_neighbors(
    table: TargetTable, *, known: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the neighbor features of ``rows``, each under one random kind of hold-out.

    A kind of hold-out is a set of axes: rows with the same combination of their values are in one
    fold, and see only the rows ``known`` of other folds. Rows without a neighbor are NaN.
    """
    n_columns = len(table.neighbor_index.columns)
    neighbors = np.full((len(rows), n_columns), np.nan, dtype=np.float32)
    axes_of_row = rng.integers(len(table.holdout_axes), size=len(rows))
    one_sided = rng.random(len(rows)) < ONE_SIDED_SHARE

    for number, axes in enumerate(table.holdout_axes):
        combination = table.positions.combination(axes)
        fold_of_combination = rng.integers(VIEW_FOLDS, size=int(combination.max()) + 1)
        fold_of_known = fold_of_combination[combination[known]]
        fold_of_row = fold_of_combination[combination[rows]]
        for fold in range(VIEW_FOLDS):
            shown = np.flatnonzero((axes_of_row == number) & (fold_of_row == fold))
            others = known[fold_of_known != fold]
            if len(shown) and len(others):
                neighbors[shown] = table.neighbor_features(others, rows[shown], one_sided[shown])
    return neighbors

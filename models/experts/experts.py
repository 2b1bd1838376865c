"""The experts on one target: models that see the same runs in different ways.

All speak of the logarithm of the target over its unit (the calibrated roofline):

- ``tree``: a regressor on the features, learning the target over its unit;
- ``direct``: the same, learning the target itself: where the unit misleads, it does not follow
  (a target without a unit has none: it would be ``tree`` again);
- ``corrected``: a regressor on features and neighbours, learning what interpolating misses;
- ``smooth``: a Gaussian process on the features, where runs are few (`Smooth`);
- ``ratios``: boosting on what has no size, where problems are few (`ScaleFreeExpert`).

Plain interpolation, of the target over its unit and of the target itself, and the unit alone, of
which nothing is to be learned, are opinions too, where rows have neighbours or problems are few.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from foretune.models.experts.neighbours import NeighborIndex
from foretune.models.experts.places import AxisPositions
from foretune.models.experts.ratios import ScaleFreeExpert
from foretune.models.experts.smooth import SmoothExpert
from foretune.models.trees.regressor import Regressor
from foretune.models.trees.together import JointModel

VIEW_FOLDS = 5
ONE_SIDED_SHARE = 0.15
"""Share of views without neighbours above: what a row beyond all runs will see."""

RegressorFactory = Callable[[], Regressor]
PARTS = ("tree", "direct", "corrected")
SMOOTH_FILE = "smooth.npz"


@dataclass
class Table:
    """Training rows in every form the experts need.

    Attributes:
        columns: names of the features.
        X: features (rows, features).
        y: log of the target over its unit (rows).
        log_unit: log of the unit (rows).
        hood, places: the neighbourhood, and where the rows lie in it.
        kinds: the ways in which a row can be new.
        scale_free: which features have no size; None where problems are many.
    """

    columns: Sequence[str]
    X: np.ndarray
    y: np.ndarray
    log_unit: np.ndarray
    neighbor_index: NeighborIndex
    positions: AxisPositions
    kinds: list[tuple[int, ...]]
    scale_free: np.ndarray | None = None

    def subset(self, rows: np.ndarray) -> "Table":
        """Return the table of some of the rows."""
        return Table(
            self.columns,
            self.X[rows],
            self.y[rows],
            self.log_unit[rows],
            self.neighbor_index,
            self.positions[rows],
            self.kinds,
            self.scale_free,
        )

    def neighbor_features(
        self, known: np.ndarray, wanted: np.ndarray, one_sided: np.ndarray | None = None
    ) -> np.ndarray:
        """Return what rows ``wanted`` see of their neighbours among rows ``known``."""
        units = (self.log_unit[known], self.log_unit[wanted]) if self.has_unit else None
        positions = self.positions[known], self.positions[wanted]
        return self.neighbor_index.neighbor_features(
            positions[0], self.y[known], positions[1], one_sided, units
        )

    @property
    def has_unit(self) -> bool:
        """Whether the target is measured against anything."""
        return bool(self.log_unit.any())


@dataclass
class Experts:
    """The fitted models; where rows have no neighbours, ``tree`` and ``smooth`` at most.

    Attributes:
        tree, direct, corrected, smooth, ratios: those that there are.
    """

    tree: Regressor
    direct: Regressor | None = None
    corrected: Regressor | None = None
    smooth: SmoothExpert | None = None
    scale_free: ScaleFreeExpert | None = None

    @classmethod
    def fit_without_neighbors(
        cls,
        make_regressor: RegressorFactory,
        table: Table,
        rows: np.ndarray,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
        quick: bool = False,
    ) -> Self:
        """Return those that need no neighbours, trained on ``rows``; ``smooth`` has the scales.

        ``quick``: for a trial.
        """
        X, y = table.X[rows], table.y[rows]
        experts = cls(
            make_regressor().fit(X, y), smooth=None if smooth is None else smooth.refit(X, y, rng)
        )
        if table.scale_free is not None and table.has_unit:
            experts.scale_free = ScaleFreeExpert.fit(table.scale_free, X, y, quick)
        return experts

    @classmethod
    def fit_with_neighbors(
        cls,
        make_regressor: RegressorFactory,
        table: Table,
        known: np.ndarray,
        rows: np.ndarray,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> Self:
        """Return all, trained on ``rows``, which see neighbours among ``known``."""
        experts = cls.fit_without_neighbors(make_regressor, table, rows, smooth, rng)
        if table.has_unit:
            experts.direct = make_regressor().fit(
                table.X[rows], table.y[rows] + table.log_unit[rows]
            )
        neighbors = _held_out_neighbors(table, known, rows, rng)
        seen = np.isfinite(neighbors[:, -2])
        if seen.any():  # else no row sees a neighbour while its like is held out
            X, base = np.hstack([table.X[rows[seen]], neighbors[seen]]), neighbors[seen, -2]
            experts.corrected = make_regressor().fit(X, table.y[rows[seen]] - base)
        return experts

    def predict(
        self, X: np.ndarray, neighbors: np.ndarray | None, log_unit: np.ndarray
    ) -> np.ndarray:
        """Return what each expert says of rows, one column each; NaN where one cannot tell.

        Args:
            X: features of the rows.
            neighbors: what they see of their neighbours, where rows have some.
            log_unit: log of their unit.
        """
        columns = [self._predict_trees(X, neighbors, log_unit)]
        if self.smooth is not None:
            columns.append(self.smooth.predict(X)[:, None])
        if self.scale_free is not None:
            columns += [self.scale_free.predict(X)[:, None], np.zeros((len(X), 1))]
        return np.concatenate(columns, axis=1)

    def _predict_trees(
        self, X: np.ndarray, neighbors: np.ndarray | None, log_unit: np.ndarray
    ) -> np.ndarray:
        if neighbors is None:
            return self._joint_model.predict(X)
        seen = X if self.corrected is None else np.concatenate([X, neighbors], axis=1)
        outputs = self._joint_model.predict(seen)
        interpolated = neighbors[:, -2].astype(np.float64)
        unknown = np.full(len(X), np.nan)
        corrected = unknown if self.corrected is None else outputs[:, -1] + interpolated
        if self.direct is None:
            columns = [outputs[:, 0], corrected, interpolated]
        else:
            direct, straight = outputs[:, 1] - log_unit, interpolated + neighbors[:, -3]
            columns = [outputs[:, 0], direct, corrected, interpolated, straight, np.zeros(len(X))]
        return np.array(columns).T

    @cached_property
    def _joint_model(self) -> JointModel:
        return JointModel([getattr(self, part) for part in self.parts])

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for part in self.parts:
            model = getattr(self, part)
            model.save(folder / f"{part}{model.suffix}")
        if self.smooth is not None:
            self.smooth.save(folder / SMOOTH_FILE)
        if self.scale_free is not None:
            self.scale_free.save(folder)

    @property
    def parts(self) -> list[str]:
        """The names of the models that there are."""
        return [part for part in PARTS if getattr(self, part) is not None]

    @classmethod
    def load(cls, folder: Path, kind: type[Regressor], parts: Sequence[str]) -> Self:
        """Read what `save` wrote: the models called ``parts``, and the smooth one if there is."""
        models = {part: kind.load(folder / f"{part}{kind.suffix}") for part in parts}
        file = folder / SMOOTH_FILE
        smooth = SmoothExpert.load(file) if file.exists() else None
        return cls(**models, smooth=smooth, scale_free=ScaleFreeExpert.load(folder))


def gating_features(
    X: np.ndarray, neighbors: np.ndarray | None, predictions: np.ndarray
) -> np.ndarray:
    """Return what tells whom to believe (float32).

    That is the neighbours, or where there are none the features, and how far opinions differ.
    """
    seen = [X] if neighbors is None else [neighbors[:, :-2], neighbors[:, -1:]]
    parts = [*seen, predictions[:, 1:] - predictions[:, :1]]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")


def _held_out_neighbors(
    table: Table, known: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return what each of ``rows`` sees when the like of it is held out, in one of many ways."""
    columns = len(table.neighbor_index.columns) + table.has_unit
    neighbors = np.full((len(rows), columns), np.nan, dtype=np.float32)
    kind_of_row = rng.integers(len(table.kinds), size=len(rows))
    one_sided = rng.random(len(rows)) < ONE_SIDED_SHARE
    for number, kind in enumerate(table.kinds):
        combination = table.positions.combination(kind)
        fold_of = rng.integers(VIEW_FOLDS, size=int(combination.max()) + 1)
        fold_known, fold_row = fold_of[combination[known]], fold_of[combination[rows]]
        for fold in range(VIEW_FOLDS):
            shown = np.flatnonzero((kind_of_row == number) & (fold_row == fold))
            kept = known[fold_known != fold]
            if len(shown) and len(kept):
                neighbors[shown] = table.neighbor_features(kept, rows[shown], one_sided[shown])
    return neighbors

"""The experts on one target: trees, interpolation, a smooth model and a scale-free model."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.files import read_json
from foretune.models.axis_positions import AxisPositions
from foretune.models.neighbors import NeighborIndex
from foretune.models.smooth import SmoothExpert
from foretune.models.trees.boosting import BoostingModel, JointModel
from foretune.models.trees.regressor import Regressor

MODEL_PARAMETERS: dict[str, Any] = {
    "rounds": 250, "depth": 6, "rate": 0.06, "rows": 0.7, "columns": 0.6, "min_child_weight": 3.0,
    "objective": "reg:absoluteerror",
}  # fmt: skip
"""Model parameters, chosen on tiled matrix products on an A100."""
FILE = "ratios"


@dataclass(frozen=True)
class ScaleFreeExpert:
    """Boosted trees that see scale-free features only.

    ``columns`` are the indices of these features.
    """

    columns: np.ndarray
    model: BoostingModel

    @classmethod
    def fit(cls, columns: np.ndarray, X: np.ndarray, y: np.ndarray, quick: bool = False) -> Self:
        """Fit to all features (rows, features) and the log of the target over its unit."""
        model = BoostingModel(**MODEL_PARAMETERS)
        return cls(columns, (model.quick() if quick else model).fit(X[:, columns], y))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return one value per row of all features."""
        return self.model.predict(X[:, self.columns])

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        self.model.save(folder / f"{FILE}{self.model.suffix}")
        text = json.dumps(self.columns.tolist())
        (folder / f"{FILE}.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read from ``folder``; None if it has no such expert."""
        file = folder / f"{FILE}.json"
        if not file.exists():
            return None
        model = BoostingModel.load(folder / f"{FILE}{BoostingModel.suffix}")
        return cls(np.array(read_json(file, list)), model)


def scale_free_features(names: Sequence[str], X: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """Return the indices of the scale-free features; at least one.

    Sizes are numbers of the problem or device, and logarithms (``log2_…``) that depend on the
    problem alone, except the intensity, which is a ratio. ``problems`` are the problem numbers of
    the rows.
    """
    _, first = np.unique(problems, return_index=True)
    same = X[first][np.unique(problems, return_inverse=True)[1]]
    decided = ((same == X) | np.isnan(X)).all(axis=0)
    kept = [
        i for i, name in enumerate(names)
        if not (
            (name.startswith(("problem.", "device.")) and "=" not in name)
            or (name.startswith("log2_") and decided[i] and name != "log2_intensity")
        )
    ]  # fmt: skip
    return np.array(kept or [0])


VIEW_FOLDS = 5
ONE_SIDED_SHARE = 0.15
"""Share of training rows whose upper neighbors are hidden, to imitate extrapolation."""

RegressorFactory = Callable[[], Regressor]
PARTS = ("tree", "direct", "corrected")
SMOOTH_FILE = "smooth.npz"


@dataclass
class Table:
    """Training rows in all forms that the experts need.

    Attributes:
        columns: feature names.
        X: features (rows, features).
        y: log of the target over its unit (rows).
        log_unit: log of the unit (rows).
        neighbor_index, positions: the index, and the rows' positions in it.
        kinds: kinds of hold-outs.
        scale_free: indices of scale-free features; None with many problems.
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
        """Return the table of some rows."""
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
        """Return the neighbor features of rows ``wanted`` among rows ``known``."""
        units = (self.log_unit[known], self.log_unit[wanted]) if self.has_unit else None
        positions = self.positions[known], self.positions[wanted]
        return self.neighbor_index.neighbor_features(
            positions[0], self.y[known], positions[1], one_sided, units
        )

    @property
    def has_unit(self) -> bool:
        """Whether the target has a unit other than 1."""
        return bool(self.log_unit.any())


@dataclass
class Experts:
    """The fitted models. Without neighbors, there is no ``direct`` or ``corrected``."""

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
        """Fit the experts that need no neighbors on ``rows``; ``smooth`` has the hyperparameters.

        ``quick`` fits the scale-free model for a trial.
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
        """Fit all experts on ``rows``, with neighbors among ``known``."""
        experts = cls.fit_without_neighbors(make_regressor, table, rows, smooth, rng)
        if table.has_unit:
            experts.direct = make_regressor().fit(
                table.X[rows], table.y[rows] + table.log_unit[rows]
            )
        neighbors = _held_out_neighbors(table, known, rows, rng)
        seen = np.isfinite(neighbors[:, -2])
        if seen.any():  # else no held-out row has a neighbor
            X, base = np.hstack([table.X[rows[seen]], neighbors[seen]]), neighbors[seen, -2]
            experts.corrected = make_regressor().fit(X, table.y[rows[seen]] - base)
        return experts

    def predict(
        self, X: np.ndarray, neighbors: np.ndarray | None, log_unit: np.ndarray
    ) -> np.ndarray:
        """Return the prediction of each expert (rows, experts); NaN if it has none."""
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
        """The names of the fitted tree models."""
        return [part for part in PARTS if getattr(self, part) is not None]

    @classmethod
    def load(cls, folder: Path, kind: type[Regressor], parts: Sequence[str]) -> Self:
        """Read the tree models ``parts`` and any other expert from ``folder``."""
        models = {part: kind.load(folder / f"{part}{kind.suffix}") for part in parts}
        file = folder / SMOOTH_FILE
        smooth = SmoothExpert.load(file) if file.exists() else None
        return cls(**models, smooth=smooth, scale_free=ScaleFreeExpert.load(folder))


def gating_features(
    X: np.ndarray, neighbors: np.ndarray | None, predictions: np.ndarray
) -> np.ndarray:
    """Return the features of the gating model (float32).

    They are the neighbor features, or without neighbors the features, and the differences between
    experts.
    """
    seen = [X] if neighbors is None else [neighbors[:, :-2], neighbors[:, -1:]]
    parts = [*seen, predictions[:, 1:] - predictions[:, :1]]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")


def _held_out_neighbors(
    table: Table, known: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the neighbor features of ``rows``, each under one random kind of hold-out."""
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

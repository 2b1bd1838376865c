"""The experts on one target, and their weights.

Trees on the features come first. Where most rows have measured neighbors, a second model corrects
the interpolation between them; elsewhere a smooth model fits the features. The interpolation and
the unit (0 on this scale) are experts without a model. Weights are inverse powers of the errors
that small models predict. These learn the root of the error's size: with its logarithm, an expert
that is mostly exact and sometimes far off would seem the best. Rows of new devices, and of tables
with few problems, have convex weights (Breiman, "Stacked Regressions", Machine Learning 24, 1996):
features would only name the few devices or problems that were held out.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models import gaussian_process as gp
from foretune.models.axis_positions import AxisPositions
from foretune.models.calibration import WORK_FEATURES
from foretune.models.interval import MIN_ERROR, error_model
from foretune.models.neighbors import INTERPOLATION, NeighborIndex
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.regressor import Regressor
from foretune.support.files import read_arrays, read_json

MAX_ROWS = 1000
MAX_TUNING_ROWS = 400
"""Maximum rows for fitting hyperparameters, which has cubic cost; more rows change little."""
GRADUAL_PREFIXES = ("problem.", "config.")  # columns along which times change gradually


@dataclass(frozen=True)
class SmoothExpert:
    """A posterior, fitted to the residuals of the ``mean``, and its inputs.

    ``order`` has the feature indices, the ``gradual_count`` gradual ones first; ``octaves`` are the
    inputs on a log2 scale.
    """

    order: np.ndarray
    gradual_count: int
    octaves: np.ndarray
    scaling: gp.Scaling
    mean: float
    posterior: gp.Posterior

    @classmethod
    def fit_hyperparameters(
        cls, columns: Sequence[str], X: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> Self:
        """Fit hyperparameters on a random subset of the rows."""
        gradual = np.array([n.startswith(GRADUAL_PREFIXES) or n in WORK_FEATURES for n in columns])
        order, count = np.argsort(~gradual, kind="stable"), int(gradual.sum())
        octaves = (np.nan_to_num(X[:, order], nan=1.0) > 0.0).all(axis=0)
        octaves[count:] = False
        scaling = gp.Scaling.fit(_inputs(X, order, octaves))
        sampled = rng.permutation(len(X))[:MAX_TUNING_ROWS]
        points, gradual_count = scaling.points(_inputs(X[sampled], order, octaves), count)
        mean = float(y[sampled].mean())
        process = gp.fit_process(points, y[sampled] - mean, gradual_count)
        posterior = gp.Posterior(process, points, y[sampled] - mean)
        return cls(order, count, octaves, scaling, mean, posterior)

    def refit(self, X: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Self:
        """Return an expert with the same hyperparameters for these rows (at most `MAX_ROWS`)."""
        sampled = rng.permutation(len(X))[:MAX_ROWS]
        mean = float(y[sampled].mean())
        process, points = self.posterior.process, self._points(X[sampled])
        return replace(self, mean=mean, posterior=gp.Posterior(process, points, y[sampled] - mean))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predict, clipped to the range of the training values."""
        deviation = self._mean_function(self._points(X))
        return self.mean + np.clip(deviation, *self._value_range)

    def save(self, path: Path) -> None:
        """Write one file of arrays."""
        np.savez_compressed(
            path,
            order=self.order,
            first=self.gradual_count,
            octaves=self.octaves,
            mean=self.mean,
            **gp.process_arrays(self.scaling, self.posterior),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read from a file."""
        data = read_arrays(path)
        scaling, posterior = gp.process_from_arrays(data)
        first, mean = int(data["first"]), float(data["mean"])
        return cls(data["order"], first, data["octaves"], scaling, mean, posterior)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_mean_function"}

    @cached_property
    def _value_range(self) -> tuple[float, float]:
        return float(self.posterior.y.min()), float(self.posterior.y.max())

    @cached_property
    def _mean_function(self) -> Callable[[np.ndarray], np.ndarray]:
        return self.posterior.mean_function()

    def _points(self, X: np.ndarray) -> np.ndarray:
        return self.scaling.points(_inputs(X, self.order, self.octaves), self.gradual_count)[0]


def _inputs(X: np.ndarray, order: np.ndarray, octaves: np.ndarray) -> np.ndarray:
    inputs = X[:, order].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.log2(inputs, out=inputs, where=octaves)
    inputs[np.isinf(inputs)] = np.nan
    return inputs


VIEW_FOLDS = 5
ONE_SIDED_SHARE = 0.15
"""Share of training rows whose upper neighbors are hidden, to imitate extrapolation."""

RegressorFactory = Callable[[], Regressor]
PARTS = ("tree", "corrected")
SMOOTH_FILE = "smooth.npz"
MIN_ERROR_ROWS = 100  # minimum held-out rows to learn errors from
MAX_ERROR = 2.0  # errors above this log (a factor of seven) count as equally bad
POWER = 4.0  # power of the inverse expected error
PRIOR_ROWS = 2.0
"""Strength of the pull towards equal weights, in rows (with few problems, in problems)."""
WEIGHT_STEPS = 30
STACK_FILE = "stack.json"


@dataclass
class Table:
    """Training rows in all forms that the experts need.

    ``X`` are the features, called ``columns``, and ``y`` the log of the target over its unit, which
    is a roofline if it ``has_unit``, else 1. ``positions`` are the rows' positions in
    ``neighbor_index``; ``kinds`` are the kinds of hold-outs.
    """

    columns: Sequence[str]
    X: np.ndarray
    y: np.ndarray
    has_unit: bool
    neighbor_index: NeighborIndex
    positions: AxisPositions
    kinds: list[tuple[int, ...]]

    def subset(self, rows: np.ndarray) -> "Table":
        """Return the table of some rows."""
        return replace(self, X=self.X[rows], y=self.y[rows], positions=self.positions[rows])

    def neighbor_features(
        self, known: np.ndarray, wanted: np.ndarray, one_sided: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the neighbor features of rows ``wanted`` among rows ``known``."""
        return self.neighbor_index.neighbor_features(
            self.positions[known], self.y[known], self.positions[wanted], one_sided
        )


@dataclass
class Experts:
    """The fitted models.

    ``tree`` sees the features; ``corrected`` sees features and neighbors, over the interpolation,
    and is None without neighbors; ``smooth`` sees the features, and is None with neighbors and with
    few rows. The unit is an expert if ``has_unit``.
    """

    tree: Regressor
    corrected: Regressor | None = None
    smooth: SmoothExpert | None = None
    has_unit: bool = False

    @classmethod
    def fit(
        cls,
        make_regressor: RegressorFactory,
        table: Table,
        rows: np.ndarray,
        known: np.ndarray | None,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> Self:
        """Fit to ``rows``, with neighbors among ``known`` unless it is None.

        ``smooth`` has the smooth expert's hyperparameters.
        """
        X, y = table.X[rows], table.y[rows]
        experts = cls(make_regressor().fit(X, y), has_unit=table.has_unit)
        if smooth is not None:
            experts.smooth = smooth.refit(X, y, rng)
        if known is not None:
            neighbors = _held_out_neighbors(table, known, rows, rng)
            base = neighbors[:, INTERPOLATION]
            seen = np.isfinite(base)
            if seen.any():  # else no held-out row has a neighbor
                inputs = np.hstack([X[seen], neighbors[seen]])
                experts.corrected = make_regressor().fit(inputs, y[seen] - base[seen])
        return experts

    def predict(self, X: np.ndarray, neighbors: np.ndarray | None) -> np.ndarray:
        """Return the prediction of each expert (rows, experts).

        The order is trees, second expert, interpolation, unit; missing ones are left out. Rows
        without neighbors repeat the trees.
        """
        tree = self.tree.predict(X)
        if neighbors is None:
            columns = [tree] if self.smooth is None else [tree, self.smooth.predict(X)]
        else:
            base = neighbors[:, INTERPOLATION].astype(np.float64)
            corrected = base
            if self.corrected is not None:
                seen = np.concatenate([X, neighbors], axis=1)
                corrected = self.corrected.predict(seen) + base
            columns = [tree, *(np.where(np.isnan(base), tree, v) for v in (corrected, base))]
        if self.has_unit:
            columns.append(np.zeros(len(X)))
        return np.array(columns).T

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for part in self.parts:
            model = getattr(self, part)
            model.save(folder / f"{part}{model.suffix}")
        if self.smooth is not None:
            self.smooth.save(folder / SMOOTH_FILE)

    @property
    def parts(self) -> list[str]:
        """The names of the fitted tree models."""
        return [part for part in PARTS if getattr(self, part) is not None]

    @classmethod
    def load(
        cls, folder: Path, kind: type[Regressor], parts: Sequence[str], has_unit: bool
    ) -> Self:
        """Read the tree models ``parts`` and any smooth expert from ``folder``."""
        models = {part: kind.load(folder / f"{part}{kind.suffix}") for part in parts}
        file = folder / SMOOTH_FILE
        smooth = SmoothExpert.load(file) if file.exists() else None
        return cls(**models, smooth=smooth, has_unit=has_unit)


def _held_out_neighbors(
    table: Table, known: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the neighbor features of ``rows``, each under one random kind of hold-out."""
    columns = len(table.neighbor_index.columns)
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


@dataclass
class Stack:
    """The weights of experts.

    ``fixed`` are convex weights, fitted on rows of new devices if some were held out. ``models``
    predict the root of each expert's error; there are none with few problems.
    """

    fixed: np.ndarray
    models: list[BoostingModel]

    @classmethod
    def fit(
        cls,
        Z: np.ndarray,
        predictions: np.ndarray,
        truth: np.ndarray,
        new_device: np.ndarray,
        problems: np.ndarray | None = None,
        seed: int = 0,
    ) -> Self:
        """Fit to the predictions of held-out rows (rows, experts), and their true values.

        The features ``Z`` show where an expert errs. ``new_device`` are the rows whose device was
        held out. With few problems, ``problems`` is the problem of each row; all have equal weight.
        """
        errors, known = predictions - truth[:, None], ~new_device
        if problems is not None:
            row_weight = 1.0 / np.bincount(problems)[problems]
            return cls(_convex_weights(errors, row_weight), [])
        some = new_device if new_device.sum() >= MIN_ERROR_ROWS or not known.any() else known
        fixed = _convex_weights(errors[some], np.ones(some.sum()))
        if not new_device.any():  # what held on the known devices may be wrong on a new one
            fixed = (fixed + 1.0 / len(fixed)) / 2.0
        if known.sum() < MIN_ERROR_ROWS or predictions.shape[1] == 1:
            return cls(fixed, [])
        roots = np.sqrt(np.clip(np.abs(errors[known]), MIN_ERROR, MAX_ERROR))
        return cls(fixed, [error_model(seed).fit(Z[known], root) for root in roots.T])

    def combine(self, Z: np.ndarray, predictions: np.ndarray, new_device: np.ndarray) -> np.ndarray:
        """Return the weighted mean of each row."""
        value = predictions @ self.fixed
        if self.models and not new_device.all():
            roots = np.column_stack([model.predict(Z) for model in self.models])
            roots = np.maximum(roots, MIN_ERROR**0.5)
            weights = roots ** (-2.0 * POWER)
            gated = (weights * predictions).sum(axis=1) / weights.sum(axis=1)
            value = np.where(new_device, value, gated)
        return np.asarray(value)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for i, model in enumerate(self.models):
            model.save(folder / f"error{i}{model.suffix}")
        card = {"fixed": self.fixed.tolist(), "models": len(self.models)}
        (folder / STACK_FILE).write_text(json.dumps(card), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read from ``folder``."""
        card = read_json(folder / STACK_FILE)
        files = (folder / f"error{i}{BoostingModel.suffix}" for i in range(card["models"]))
        return cls(np.array(card["fixed"]), [BoostingModel.load(file) for file in files])


def _convex_weights(errors: np.ndarray, row_weight: np.ndarray) -> np.ndarray:
    """Return convex weights of the experts (columns) with the least sum of absolute errors.

    Iteratively reweighted least squares; each step is a small nonnegative problem.
    """
    from scipy.optimize import nnls

    experts = errors.shape[1]
    weights = np.full(experts, 1.0 / experts)
    prior = PRIOR_ROWS * np.median(np.abs(errors - errors.mean(axis=1, keepdims=True))) + MIN_ERROR
    for _ in range(WEIGHT_STEPS):
        size = np.maximum(np.abs(errors @ weights), MIN_ERROR)
        gram = (errors * (row_weight / size)[:, None]).T @ errors + prior * np.eye(experts)
        # A heavy last row makes the weights sum to one.
        heavy = 1e3 * np.sqrt(np.trace(gram))
        root = np.vstack([np.linalg.cholesky(gram).T, np.full(experts, heavy)])
        pull = np.linalg.solve(root[:-1].T, np.full(experts, prior / experts))
        weights = nnls(root, np.append(pull, heavy))[0]
        weights /= weights.sum()
    return weights

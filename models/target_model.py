"""The model of one target: experts, their weights, and the interval.

Rows are held out in every way in which a row can be new. The experts' (`Experts`) predictions for
them give the weights (`Stack`); the errors of the weighted mean give the interval
(`ConformalInterval`).
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.features.featureset import FeatureSet
from foretune.models.axis_positions import AxisPositions
from foretune.models.distinct_problems import distinct_problems, exact_problems, has_few_problems
from foretune.models.experts import Experts, RegressorFactory, SmoothExpert, Stack, Table
from foretune.models.holdouts import holdout_kinds, mixed_holdouts
from foretune.models.interval import NEW_DEVICE, ConformalInterval
from foretune.models.neighbors import INTERPOLATION, Axis, NeighborIndex, RepeatedSize
from foretune.models.repeats import Repeats
from foretune.models.splits import fold_of_rows
from foretune.models.targets import Target, TargetScale
from foretune.models.training_range import TrainingRange
from foretune.support.files import read_json

HOLDOUTS, MORE_HOLDOUTS = 3, 6
SMALL_TABLE_ROWS = 5_000  # tables up to this size get more hold-outs, which are cheap there
MAX_ROWS = 250_000  # maximum number of training rows (random subset); neighbors come from all rows
MAX_TRIAL_ROWS, MAX_SCORED_ROWS = 20_000, 5_000
"""Maximum training rows and scored rows of a hold-out trial."""
MIN_NEIGHBOR_SHARE = 0.5  # minimum share of rows with neighbors for neighbors to be used
MIN_DEVICES, MAX_HELD_OUT_DEVICES = 2, 4
"""Minimum devices for holding some out, and how many are held out, one at a time."""
PROBLEM_FOLDS = 6  # number of folds if there are few problems
MIN_NEIGHBOR_ROWS = 200  # minimum rows for neighbors to be used
MIN_SMOOTH_ROWS, MAX_SMOOTH_ROWS = 40, 3000  # table sizes with a smooth expert
NEIGHBORS_FILE = "neighbors.npz"


class _Trials(NamedTuple):
    """Held-out rows, and the predictions of experts that did not see them (rows, experts).

    ``Z`` is from `_error_features`, ``kind`` from `_kinds`; ``rows`` are indices in the table, and
    ``number`` is the trial of each row.
    """

    Z: np.ndarray
    predictions: np.ndarray
    rows: np.ndarray
    kind: np.ndarray
    number: np.ndarray


class TargetModel:
    """The model of one target, ``time_ms`` or ``power_w``.

    With neighbors, `neighbor_index` is not None, and `positions` and `values` are the measured runs
    and their target values. `devices` are those of training; `reach` maps a column to how far
    outside the range rows were held out.
    """

    scale: TargetScale
    experts: Experts
    stack: Stack
    interval: ConformalInterval
    positions: AxisPositions
    values: np.ndarray
    devices: list[str]
    reach: dict[str, float]

    def __init__(self, target: Target, make_regressor: RegressorFactory, seed: int = 0) -> None:
        self.target = target
        self.make_regressor = make_regressor
        self.seed = seed
        self.neighbor_index: NeighborIndex | None = None

    def fit(
        self,
        features: FeatureSet,
        rows: pd.DataFrame,
        X: np.ndarray,
        repeats: Repeats | None = None,
    ) -> Self:
        """Fit to ``rows``, which all have the target, with features ``X``.

        The interval covers any of the ``repeats``, the other measurements of the same rows.
        """
        rng = np.random.default_rng(self.seed)
        self.devices = sorted(rows["device"].astype(str).unique())
        problems = distinct_problems(rows)
        few_problems = has_few_problems(problems, exact_problems(rows))
        full_table = self._table(features, rows, X, problems if few_problems else None)
        sampled = _sample(np.arange(len(rows)), MAX_ROWS, rng)
        table, rows = full_table.subset(sampled), rows.iloc[sampled].reset_index(drop=True)
        smooth = None
        if few_problems or not _has_neighbors(table):
            if MIN_SMOOTH_ROWS <= len(table.y) <= MAX_SMOOTH_ROWS:
                smooth = SmoothExpert.fit_hyperparameters(table.columns, table.X, table.y, rng)
        else:
            self.neighbor_index = full_table.neighbor_index
            self.positions, self.values = full_table.positions, full_table.y
        held_out = self._holdouts(table, rows, problems[sampled] if few_problems else None, rng)
        trial = partial(self._trial, table, rows, smooth=smooth, rng=rng)
        parts = [trial(out, number) for number, out in enumerate(held_out)]
        trials = _Trials(*map(np.concatenate, zip(*parts, strict=True)))
        everything = np.arange(len(rows))
        known = None if self.neighbor_index is None else everything
        self.experts = Experts.fit(self.make_regressor, table, everything, known, smooth, rng)
        truth = table.y[trials.rows]
        scored_problems = problems[sampled][trials.rows] if few_problems else None
        errors = truth - self._stack(trials, truth, scored_problems)
        if repeats is not None:
            errors += repeats.draw(sampled[trials.rows], np.random.default_rng(self.seed))
        outside = self._octaves_outside(rows, held_out, trials)
        Z = _disagreement(trials.predictions) if few_problems else trials.Z
        self.interval = ConformalInterval.fit(
            Z, errors, trials.number, outside, trials.kind, self.seed, scored_problems
        )
        return self

    def _stack(self, trials: _Trials, truth: np.ndarray, problems: np.ndarray | None) -> np.ndarray:
        """Fit the weights; return each trial's values with weights from the others."""
        Z, predictions, new_device = trials.Z, trials.predictions, trials.kind == NEW_DEVICE

        def fitted(rows: np.ndarray) -> Stack:
            numbers = None if problems is None else problems[rows]
            return Stack.fit(
                Z[rows], predictions[rows], truth[rows], new_device[rows], numbers, self.seed
            )

        everything = np.ones(len(truth), dtype=bool)
        self.stack, value = fitted(everything), np.empty(len(truth))
        for name in np.unique(trials.number):
            out = trials.number == name
            stack = self.stack if out.all() else fitted(~out)
            value[out] = stack.combine(Z[out], predictions[out], new_device[out])
        return value

    def predict(
        self,
        features: FeatureSet,
        rows: pd.DataFrame | Rows,
        X: np.ndarray,
        outside: np.ndarray,
        beyond: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, per row, the log of the target, its interval's half-width and expert differences.

        The differences are each expert's log less the weighted log (rows, experts). ``X`` are the
        features of the rows, ``outside`` their octaves outside the training range, and ``beyond``
        the same less `reach`.
        """
        rows = Rows.from_table(rows)
        neighbors = self._neighbor_features(rows)
        predictions, new_device = self.experts.predict(X, neighbors), self._is_new_device(rows)
        Z = _error_features(X, neighbors, predictions)
        log_value = self.stack.combine(Z, predictions, new_device)
        kind = self._kinds(neighbors, new_device)
        if self.interval.median_error is not None:
            Z = _disagreement(predictions)
        width = self.interval.half_width(Z, outside, beyond, kind)
        log_unit = self.scale.log_unit(features, rows) + self.scale.log_scale(rows)
        return log_value + log_unit, width, predictions - log_value[:, None]

    def _kinds(self, neighbors: np.ndarray | None, new_device: np.ndarray) -> np.ndarray:
        """Return the kind of each row: `NEW_DEVICE`, or its axes with neighbors on both sides."""
        axes: np.ndarray | int = 0
        if neighbors is not None and self.neighbor_index is not None:
            axes = self.neighbor_index.two_sided_axes(neighbors)
        return np.where(new_device, NEW_DEVICE, axes)

    def _is_new_device(self, rows: Rows) -> np.ndarray:
        if "device" not in rows:
            return np.zeros(len(rows), dtype=bool)
        names, codes = rows.distinct("device")
        return ~np.isin(names, self.devices)[codes]

    def _neighbor_features(self, rows: Rows) -> np.ndarray | None:
        if (index := self.neighbor_index) is None:
            return None
        return index.neighbor_features(self.positions, self.values, index.locate(rows))

    def _table(
        self, features: FeatureSet, rows: pd.DataFrame, X: np.ndarray, problems: np.ndarray | None
    ) -> Table:
        """Return the rows in the form experts need; ``problems`` is None with many problems."""
        log_target = np.log(rows[self.target].to_numpy(dtype=float))
        self.scale = TargetScale.fit(self.target, features, rows, log_target, problems)
        y = log_target - self.scale.log_scale(rows) - self.scale.log_unit(features, rows)
        neighbor_index = NeighborIndex.from_runs(rows)
        positions = neighbor_index.locate(rows)
        neighbor_index.measure_axes(positions, y)
        kinds, has_unit = holdout_kinds(neighbor_index.axes), self.scale.roofline is not None
        return Table(features.columns_ or (), X, y, has_unit, neighbor_index, positions, kinds)

    def _holdouts(
        self,
        table: Table,
        rows: pd.DataFrame,
        problems: np.ndarray | None,
        rng: np.random.Generator,
    ) -> list[np.ndarray]:
        if problems is not None:
            return [*_problems_held_out(problems, rng), *_devices_held_out(rows, rng)]
        count = MORE_HOLDOUTS if len(rows) <= SMALL_TABLE_ROWS else HOLDOUTS
        if self.neighbor_index is not None:
            mixed = mixed_holdouts(table.positions, table.kinds, count, rng)
            return [*mixed, *_devices_held_out(rows, rng)]
        folds = fold_of_rows(rows, "grouped", self.seed, "task", count)
        if folds is None:
            folds = fold_of_rows(rows, "random", self.seed, folds=count)
        assert folds is not None  # at least five rows
        return [folds == fold for fold in np.unique(folds)]

    def _trial(
        self,
        table: Table,
        rows: pd.DataFrame,
        out: np.ndarray,
        number: int,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> _Trials:
        known = np.flatnonzero(~out)
        sampled = _sample(known, MAX_TRIAL_ROWS, rng)
        wanted = _sample(np.flatnonzero(out), MAX_SCORED_ROWS, rng)
        X, neighbors = table.X[wanted], None
        neighbors_from = None if self.neighbor_index is None else known
        experts = Experts.fit(
            lambda: self.make_regressor().quick(), table, sampled, neighbors_from, smooth, rng
        )
        if neighbors_from is not None:
            neighbors = table.neighbor_features(neighbors_from, wanted)
        predictions = experts.predict(X, neighbors)
        device = pd.factorize(rows["device"])[0]
        kind = self._kinds(neighbors, ~np.isin(device[wanted], device[known]))
        Z = _error_features(X, neighbors, predictions)
        return _Trials(Z, predictions, wanted, kind, np.full(len(wanted), number))

    def _octaves_outside(
        self, rows: pd.DataFrame, held_out: list[np.ndarray], trials: _Trials
    ) -> np.ndarray:
        """Return how far outside the range the scored rows were; update `reach`."""
        self.reach, outside, table = {}, [], Rows(rows)
        for number, out in enumerate(held_out):
            known = TrainingRange.from_runs(table.take(np.flatnonzero(~out)))
            scored_rows = table.take(trials.rows[trials.number == number])
            outside.append(known.octaves_outside(scored_rows))
            for column, far in known.reach(scored_rows).items():
                self.reach[column] = max(far, self.reach.get(column, 0.0))
        return np.concatenate(outside)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        folder.mkdir()
        self.experts.save(folder)
        self.interval.save(folder, "spread")
        self.stack.save(folder)
        card: dict[str, Any] = {
            "scale": self.scale.to_json(),
            "reach": self.reach,
            "devices": self.devices,
            "experts": self.experts.parts,
            "neighbors": None,
        }
        if (index := self.neighbor_index) is not None:
            self.positions.save(folder / NEIGHBORS_FILE, self.values)
            card["neighbors"] = {
                "axes": [vars(axis) for axis in index.axes],
                "series": index.group_columns,
                "repeated": [vars(size) for size in index.repeated],
            }
        (folder / "target.json").write_text(json.dumps(card, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, target: Target, make_regressor: RegressorFactory) -> Self:
        """Read from ``folder``."""
        model = cls(target, make_regressor)
        card = read_json(folder / "target.json")
        model.scale = TargetScale.from_json(card["scale"], target)
        model.reach, model.devices = dict(card["reach"]), list(card["devices"])
        kind, has_unit = type(make_regressor()), model.scale.roofline is not None
        model.experts = Experts.load(folder, kind, card["experts"], has_unit)
        model.stack = Stack.load(folder)
        model.interval = ConformalInterval.load(folder, "spread")
        if (saved := card["neighbors"]) is not None:
            repeated = [
                RepeatedSize(size["column"], tuple(size["factors"]), size["ratio"])
                for size in saved["repeated"]
            ]
            axes = [Axis(**axis) for axis in saved["axes"]]
            model.neighbor_index = NeighborIndex(axes, saved["series"], repeated)
            model.positions, model.values = AxisPositions.load(folder / NEIGHBORS_FILE)
        return model


def _error_features(
    X: np.ndarray, neighbors: np.ndarray | None, predictions: np.ndarray
) -> np.ndarray:
    """Return features that distinguish rows with large errors (float32).

    These are neighbor features (or features, if there are none) and differences between experts.
    """
    seen = X if neighbors is None else np.delete(neighbors, INTERPOLATION, axis=1)
    parts = [seen, predictions[:, 1:] - predictions[:, :1]]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")


def _disagreement(predictions: np.ndarray) -> np.ndarray:
    """Return the mean distance of the experts from their mean (rows, 1)."""
    return np.abs(predictions - predictions.mean(axis=1, keepdims=True)).mean(axis=1, keepdims=True)


def _problems_held_out(problems: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return masks of whole problems, each held out once."""
    distinct = int(problems.max()) + 1
    fold = rng.permutation(distinct) % min(distinct, PROBLEM_FOLDS)
    return [fold[problems] == number for number in np.unique(fold)]


def _devices_held_out(rows: pd.DataFrame, rng: np.random.Generator) -> list[np.ndarray]:
    """Return masks of whole devices, if enough others remain."""
    names = rows["device"].astype(str).to_numpy()
    devices = np.unique(names)
    if len(devices) < MIN_DEVICES:
        return []
    chosen = rng.permutation(devices)[:MAX_HELD_OUT_DEVICES]
    return [names == device for device in chosen]


def _has_neighbors(table: Table) -> bool:
    if len(table.y) < MIN_NEIGHBOR_ROWS or not table.neighbor_index.axes:
        return False
    neighbors = table.neighbor_index.neighbor_features(table.positions, table.y, table.positions)
    return bool(np.isfinite(neighbors[:, -1]).mean() >= MIN_NEIGHBOR_SHARE)


def _sample(rows: np.ndarray, max_rows: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= max_rows else np.sort(rng.choice(rows, max_rows, replace=False))

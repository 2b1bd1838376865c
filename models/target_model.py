"""The model of one target: experts, their weights, and the interval.

Rows are held out in every way in which a row can be new. The predictions of the experts (`Experts`)
for them train the weights (`Blend`); the errors of the blend train the interval
(`ConformalInterval`). Without neighbors (randomly drawn configurations), the experts are trees and
a smooth model.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features import FeatureSet
from foretune.features.arrays import Rows, SingleRow
from foretune.files import read_json
from foretune.models.axis_positions import AxisPositions
from foretune.models.blend import Blend
from foretune.models.experts import (
    Experts,
    RegressorFactory,
    Table,
    gating_features,
    scale_free_features,
)
from foretune.models.holdouts import (
    distinct_problems,
    exact_problems,
    has_few_problems,
    holdout_kinds,
    mixed_holdouts,
)
from foretune.models.interval import ConformalInterval
from foretune.models.neighbors import NO_NEIGHBORS, Axis, NeighborIndex, RepeatedSize
from foretune.models.repeats import Repeats
from foretune.models.smooth import SmoothExpert
from foretune.models.targets import Target, TargetScale
from foretune.models.training_range import TrainingRange
from foretune.models.trees.regressor import Regressor
from foretune.models.validation.splits import fold_of_rows

HOLDOUTS, MORE_HOLDOUTS = 3, 6
SMALL_TABLE_ROWS = 5_000
"""Tables up to this size get more hold-outs, which are cheap there."""
MAX_ROWS = 250_000
"""Maximum number of training rows (random subset); neighbors come from all rows."""
MAX_TRIAL_ROWS, MAX_SCORED_ROWS = 20_000, 5_000
"""Maximum training rows and scored rows of a hold-out trial."""
MIN_NEIGHBOR_SHARE = 0.5
"""Minimum share of rows with neighbors for neighbors to be used."""
MIN_DEVICES, MAX_HELD_OUT_DEVICES = 3, 4
"""Minimum devices to hold some out, and how many are held out, one at a time."""
PROBLEM_FOLDS = 6
"""Number of folds if there are few problems."""
MIN_NEIGHBOR_ROWS = 200
"""Minimum rows for neighbors to be used."""
MIN_SMOOTH_ROWS, MAX_SMOOTH_ROWS = 40, 3000
"""Table sizes with a smooth expert."""


@dataclass(frozen=True)
class _Trials:
    """Held-out rows and what experts that did not see them predict.

    Attributes:
        Z: gating features (rows, features).
        predictions: (rows, experts).
        rows: indices in the table.
        neighbor_class: see `NeighborIndex.neighbor_class`.
        number: the trial of each row.
    """

    Z: np.ndarray
    predictions: np.ndarray
    rows: np.ndarray
    neighbor_class: np.ndarray
    number: np.ndarray

    @classmethod
    def concatenated(cls, trials: "Sequence[_Trials]") -> Self:
        """Return all trials as one, numbered in order."""
        return cls(
            Z=np.concatenate([t.Z for t in trials]),
            predictions=np.concatenate([t.predictions for t in trials]),
            rows=np.concatenate([t.rows for t in trials]),
            neighbor_class=np.concatenate([t.neighbor_class for t in trials]),
            number=np.repeat(np.arange(len(trials)), [len(t.rows) for t in trials]),
        )


class TargetModel:
    """The model of one target, ``time_ms`` or ``power_w``.

    Attributes:
        scale: the scale on which the target is learned.
        experts, interval: the parts.
        blend: the weights of the experts; None if there is one expert.
        neighbor_index: None if neighbors are not used.
        positions, values: measured runs and their target values; set with neighbors.
        log_units: log of the unit of each measured run; None without a unit.
        reach: column -> how far outside the range rows were held out.
        training_devices: the devices, if too few to hold one out; None otherwise, and with few
            problems.
    """

    scale: TargetScale
    experts: Experts
    interval: ConformalInterval
    positions: AxisPositions
    values: np.ndarray
    reach: dict[str, float]

    def __init__(self, target: Target, make_regressor: RegressorFactory, seed: int = 0) -> None:
        self.target = target
        self.make_regressor = make_regressor
        self.seed = seed
        self.blend: Blend | None = None
        self.neighbor_index: NeighborIndex | None = None
        self.log_units: np.ndarray | None = None
        self.training_devices: list[str] | None = None

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
        problems = distinct_problems(rows)
        few_problems = has_few_problems(problems, exact_problems(rows))
        full_table = self._table(features, rows, X, problems if few_problems else None)
        sampled = _sample(np.arange(len(rows)), MAX_ROWS, rng)
        table, rows = full_table.subset(sampled), rows.iloc[sampled].reset_index(drop=True)
        without_neighbors = few_problems or not _has_neighbors(table)
        if few_problems:
            held_out = _problems_held_out(problems[sampled], rng) + _devices_held_out(rows, rng)
        else:
            held_out = self._holdouts(table, rows, without_neighbors, rng)
            known = sorted(rows["device"].astype(str).unique())
            self.training_devices = known if len(known) < MIN_DEVICES else None
        smooth = None
        if MIN_SMOOTH_ROWS <= len(rows) <= MAX_SMOOTH_ROWS:
            smooth = SmoothExpert.fit_hyperparameters(table.columns, table.X, table.y, rng)
        trials = _Trials.concatenated(
            [self._trial(table, out, without_neighbors, smooth, rng) for out in held_out]
        )
        outside, truth = self._octaves_outside(rows, held_out, trials), table.y[trials.rows]
        scored_problems = problems[sampled][trials.rows] if few_problems else None
        predicted = self._fit_blend(trials, truth, scored_problems)
        self._fit_experts(table, full_table, without_neighbors, smooth, rng)
        errors = truth - predicted
        if repeats is not None:
            errors += repeats.draw(sampled[trials.rows], np.random.default_rng(self.seed))
        Z = _disagreement(trials.predictions, predicted) if few_problems else trials.Z
        self.interval = ConformalInterval.fit(
            Z, errors, trials.number, outside, trials.neighbor_class, self.seed, scored_problems
        )
        return self

    def _fit_blend(
        self, trials: "_Trials", truth: np.ndarray, problems: np.ndarray | None
    ) -> np.ndarray:
        """Fit the blend, unless there is one expert; return its values of the held-out rows."""
        if trials.predictions.shape[1] == 1:
            return trials.predictions[:, 0]
        if problems is not None:
            self.blend, predicted = Blend.fit_by_problem(
                trials.predictions, truth, trials.number, problems
            )
        else:
            new_device = trials.neighbor_class == NO_NEIGHBORS
            self.blend, predicted = Blend.fit(
                trials.Z, trials.predictions, truth, trials.number, new_device, self.seed
            )
        return predicted

    def _fit_experts(
        self,
        table: Table,
        full_table: Table,
        without_neighbors: bool,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> None:
        rows = np.arange(len(table.y))
        if without_neighbors:
            self.experts = Experts.fit_without_neighbors(
                self.make_regressor, table, rows, smooth, rng
            )
            return
        self.experts = Experts.fit_with_neighbors(
            self.make_regressor, table, rows, rows, smooth, rng
        )
        self.neighbor_index = full_table.neighbor_index
        self.positions, self.values = full_table.positions, full_table.y
        self.log_units = full_table.log_unit if full_table.has_unit else None

    def predict(
        self,
        features: FeatureSet,
        rows: pd.DataFrame | Rows,
        X: np.ndarray,
        outside: np.ndarray,
        beyond: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, per row, the log of the target, its interval's half-width and expert differences.

        The differences are each expert's log less the blended log (rows, experts); NaN if it has
        none.

        Args:
            features: the fitted feature set.
            rows: the rows to predict.
            X: their features.
            outside: octaves outside the training range.
            beyond: the same, less `reach`.
        """
        rows = Rows.from_table(rows)
        log_unit = self.scale.log_unit(features, rows)
        neighbors = self._neighbor_features(rows, log_unit)
        predictions = self.experts.predict(X, neighbors, log_unit)
        Z = gating_features(X, neighbors, predictions)
        neighbor_class = _neighbor_class(self.neighbor_index, neighbors, len(X))
        log_value = predictions[:, 0]
        if self.blend is not None:
            log_value = self.blend.predict(
                Z, predictions, neighbor_class == NO_NEIGHBORS, self._is_unseen_device(rows)
            )
        differences = predictions - log_value[:, None]
        if neighbors is None and self.scale.roofline:  # with neighbors, the unit is an expert
            differences = np.column_stack([differences, -log_value])
        if self.interval.median_error is not None:
            Z = _disagreement(predictions, log_value)
        width = self.interval.half_width(Z, outside, beyond, neighbor_class)
        return log_value + log_unit + self.scale.log_scale(rows), width, differences

    def _is_unseen_device(self, rows: Rows) -> np.ndarray:
        """Return which rows are of a new device, if no device was held out."""
        if self.training_devices is None or "device" not in rows:
            return np.zeros(len(rows), dtype=bool)
        names, codes = rows.distinct("device")
        return ~np.isin(names, self.training_devices)[codes]

    def _neighbor_features(self, rows: Rows, log_unit: np.ndarray) -> np.ndarray | None:
        """Return the neighbor features of rows; None without neighbors."""
        if self.neighbor_index is None:
            return None
        neighbor_index = self.neighbor_index
        wanted = (
            neighbor_index.locate_one(rows)
            if isinstance(rows, SingleRow)
            else neighbor_index.locate(rows)
        )
        log_units = None if self.log_units is None else (self.log_units, log_unit)
        return neighbor_index.neighbor_features(
            self.positions, self.values, wanted, log_units=log_units
        )

    def _table(
        self, features: FeatureSet, rows: pd.DataFrame, X: np.ndarray, problems: np.ndarray | None
    ) -> Table:
        """Return the rows as experts need them; ``problems`` is None with many problems."""
        log_target = np.log(rows[self.target].to_numpy(dtype=float))
        self.scale = TargetScale.fit(self.target, features, rows, log_target, problems)
        log_unit = self.scale.log_unit(features, rows)
        log_target = log_target - self.scale.log_scale(rows)
        neighbor_index = NeighborIndex.from_runs(rows)
        positions = neighbor_index.locate(rows)
        neighbor_index.measure_axes(positions, log_target - log_unit)
        kinds = holdout_kinds(neighbor_index.axes)
        columns = features.columns_ or ()
        scale_free = None if problems is None else scale_free_features(columns, X, problems)
        return Table(
            columns,
            X,
            log_target - log_unit,
            log_unit,
            neighbor_index,
            positions,
            kinds,
            scale_free,
        )

    def _holdouts(
        self, table: Table, rows: pd.DataFrame, without_neighbors: bool, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return masks of the rows to hold out together."""
        count = MORE_HOLDOUTS if len(rows) <= SMALL_TABLE_ROWS else HOLDOUTS
        if not without_neighbors:
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
        out: np.ndarray,
        without_neighbors: bool,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> "_Trials":
        """Fit experts without the rows held out, and predict these."""
        known = np.flatnonzero(~out)
        sampled = _sample(known, MAX_TRIAL_ROWS, rng)
        wanted = _sample(np.flatnonzero(out), MAX_SCORED_ROWS, rng)
        X, log_unit = table.X[wanted], table.log_unit[wanted]
        neighbors = None
        if without_neighbors:
            experts = Experts.fit_without_neighbors(
                self._quick_regressor, table, sampled, smooth, rng, True
            )
        else:
            experts = Experts.fit_with_neighbors(
                self._quick_regressor, table, known, sampled, smooth, rng
            )
            neighbors = table.neighbor_features(known, wanted)
        predictions = experts.predict(X, neighbors, log_unit)
        neighbor_class = _neighbor_class(table.neighbor_index, neighbors, len(wanted))
        Z = gating_features(X, neighbors, predictions)
        return _Trials(Z, predictions, wanted, neighbor_class, np.zeros(len(wanted), dtype=int))

    def _octaves_outside(
        self, rows: pd.DataFrame, held_out: list[np.ndarray], trials: "_Trials"
    ) -> np.ndarray:
        """Return how far outside the range the scored rows were; update `reach`."""
        self.reach, outside = {}, []
        for number, out in enumerate(held_out):
            known = TrainingRange.from_runs(rows[~out])
            scored_rows = rows.iloc[trials.rows[trials.number == number]]
            outside.append(known.octaves_outside(scored_rows))
            for column, far in known.reach(scored_rows).items():
                self.reach[column] = max(far, self.reach.get(column, 0.0))
        return np.concatenate(outside)

    def _quick_regressor(self) -> Regressor:
        """Return a new regressor for a trial."""
        return self.make_regressor().quick()

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        folder.mkdir()
        self.experts.save(folder)
        self.interval.save(folder, "spread")
        card: dict[str, Any] = {
            "unit": self.scale.to_json(),
            "reach": self.reach,
            "experts": self.experts.parts,
            "opinions": None if self.blend is None else len(self.blend.models),
            "neighbours": None,
        } | ({} if self.training_devices is None else {"devices": self.training_devices})
        if self.blend is not None:
            self.blend.save(folder)
        if self.neighbor_index is not None:
            values = [self.values] if self.log_units is None else [self.values, self.log_units]
            self.positions.save(folder / "neighbours.npz", np.array(values))
            card["neighbours"] = {
                "axes": [vars(axis) for axis in self.neighbor_index.axes],
                "series": self.neighbor_index.group_columns,
                "repeated": [vars(size) for size in self.neighbor_index.repeated],
            }
        (folder / "target.json").write_text(json.dumps(card, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, target: Target, make_regressor: RegressorFactory) -> Self:
        """Read from ``folder``."""
        model = cls(target, make_regressor)
        card = read_json(folder / "target.json")
        model.scale = TargetScale.from_json(card["unit"], target)
        model.reach = dict(card["reach"])
        model.training_devices = card.get("devices")
        saved_neighbors = card["neighbours"]
        model.experts = Experts.load(folder, type(make_regressor()), card["experts"])
        model.interval = ConformalInterval.load(folder, "spread")
        if saved_neighbors is not None:
            axes = [Axis(**axis) for axis in saved_neighbors["axes"]]
            repeated = [
                RepeatedSize(size["column"], tuple(size["factors"]), size["ratio"])
                for size in saved_neighbors["repeated"]
            ]
            model.neighbor_index = NeighborIndex(axes, saved_neighbors["series"], repeated)
            model.positions, (model.values, *log_units) = AxisPositions.load(
                folder / "neighbours.npz"
            )
            model.log_units = log_units[0] if log_units else None
        if card["opinions"] is not None:
            model.blend = Blend.load(folder, card["opinions"])
        return model


def share_positions(models: Iterable[TargetModel]) -> None:
    """Let models of the same rows share their `AxisPositions`, to find neighbors once."""
    different: list[AxisPositions] = []
    for model in models:
        if model.neighbor_index is None:
            continue
        for positions in different:
            if positions.has_same_rows(model.positions):
                model.positions = positions
                break
        else:
            different.append(model.positions)


def _disagreement(predictions: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return the mean distance of the experts from the value (rows, 1)."""
    return np.nanmean(np.abs(predictions - value[:, None]), axis=1, keepdims=True)


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


def _neighbor_class(
    neighbor_index: NeighborIndex | None, neighbors: np.ndarray | None, rows: int
) -> np.ndarray:
    """Return the neighbor class of rows; all 0 without neighbors."""
    return (
        np.zeros(rows, dtype=int)
        if neighbor_index is None or neighbors is None
        else neighbor_index.neighbor_class(neighbors)
    )


def _sample(rows: np.ndarray, max_rows: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= max_rows else np.sort(rng.choice(rows, max_rows, replace=False))

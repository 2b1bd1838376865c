"""The model of one target: experts, their weights, and the interval.

Rows are held out in every way in which a row can be new. The predictions of the experts
(`foretune.models.experts`) for them give the weights (`foretune.models.stack`). The errors of the
weighted mean give the interval (`foretune.models.interval`). How much of this is learned depends on
the number of problems (`foretune.models.regime`).

Arrays: ``X`` are features (rows, features); ``y`` is the log of the target over its unit (rows);
``neighbors`` are features of each row's nearest measured runs (rows, features), or None.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.features.featureset import FeatureSet
from foretune.models.axis_positions import AxisPositions
from foretune.models.distinct_problems import distinct_problems
from foretune.models.expert_predictions import NEW_DEVICE, ExpertPredictions, Trials
from foretune.models.experts import Experts, RegressorFactory
from foretune.models.holdouts import holdout_axes
from foretune.models.interval import Interval, load_interval
from foretune.models.neighbors import Axis, NeighborIndex
from foretune.models.regime import Regime, choose_regime
from foretune.models.repeated_sizes import RepeatedSize
from foretune.models.repeats import Repeats
from foretune.models.smooth_expert import SmoothExpert
from foretune.models.stack import ConvexStack, load_stack
from foretune.models.target_table import TargetTable
from foretune.models.targets import Target, TargetScale
from foretune.models.training_range import TrainingRange
from foretune.support.files import read_json

MAX_ROWS = 250_000
"""Maximum number of training rows (random subset); neighbors come from all rows."""
MAX_TRIAL_ROWS = 20_000
"""Maximum training rows of a hold-out trial."""
MAX_SCORED_ROWS = 5_000
"""Maximum scored rows of a hold-out trial."""
MIN_SMOOTH_ROWS = 40
MAX_SMOOTH_ROWS = 3000
"""Sizes of tables with a smooth expert."""
CARD_FILE = "target.json"
NEIGHBORS_FILE = "neighbors.npz"
INTERVAL_NAME = "spread"


@dataclass(frozen=True)
class TargetPrediction:
    """What `TargetModel.predict` returns, per row.

    Attributes:
        log_value: log of the target.
        half_width: half-width of its interval, of the log.
        expert_differences: each expert's log less the weighted log (rows, experts).
    """

    log_value: np.ndarray
    half_width: np.ndarray
    expert_differences: np.ndarray


class TargetModel:
    """The model of one target, ``time_ms`` or ``power_w``.

    Attributes:
        scale: the unit of the target.
        experts: the fitted models.
        stack: their weights.
        interval: half-widths of the interval.
        neighbor_index: finds neighbors; None if they are not used.
        positions: where the measured runs are in that index.
        values: their target over its unit, a log.
        devices: names of the training devices.
        reach: column -> how far outside the range rows were held out, in octaves.
    """

    scale: TargetScale
    experts: Experts
    stack: ConvexStack
    interval: Interval
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

        # 1. Prepare: with few problems, rules take the place of what many problems can teach. The
        # unit is calibrated on all rows, the rest is learned from a sample of a large table.
        problems = distinct_problems(rows)
        regime = choose_regime(rows, problems, self.seed)
        full_table = self._fit_scale(regime, features, rows, X, problems)
        sampled = _sample(np.arange(len(rows)), MAX_ROWS, rng)
        table = full_table.subset(sampled)

        # 2. The second expert: interpolation between neighbors where most rows have some, else a
        # smooth model, which is too slow for large tables.
        smooth = None
        if regime.uses_neighbors(table):
            self.neighbor_index = full_table.neighbor_index
            self.positions = full_table.positions
            self.values = full_table.y
        elif MIN_SMOOTH_ROWS <= len(table) <= MAX_SMOOTH_ROWS:
            smooth = SmoothExpert.fit_hyperparameters(table.columns, table.X, table.y, rng)

        # 3. Hold rows out, and predict them by experts that did not see them.
        held_out = regime.holdouts(table, self.neighbor_index is not None, rng)
        trials = Trials.concatenate(
            [
                self._trial(table, is_held_out, number=number, smooth=smooth, rng=rng)
                for number, is_held_out in enumerate(held_out)
            ]
        )

        # 4. The experts that will predict learn from all rows.
        all_rows = np.arange(len(table))
        self.experts = Experts.fit(
            self.make_regressor,
            table,
            rows=all_rows,
            neighbor_rows=None if self.neighbor_index is None else all_rows,
            smooth=smooth,
            rng=rng,
        )

        # 5. Their weights come from the held-out rows. The weights for a trial's rows are fitted to
        # the other trials: its own rows would make the errors look too small.
        true_value = table.y[trials.rows]
        scored_problems = table.problems[trials.rows]
        errors = true_value - self._fit_stack(regime, trials, true_value, scored_problems)

        # 6. The interval must hold for any measurement of a run, not only for the newest one.
        if repeats is not None:
            errors += repeats.draw(sampled[trials.rows], np.random.default_rng(self.seed))
        octaves_outside = self._measure_reach(table, held_out, trials)
        self.interval = regime.fit_interval(trials, errors, octaves_outside, scored_problems)
        return self

    def predict(
        self,
        features: FeatureSet,
        rows: pd.DataFrame | Rows,
        X: np.ndarray,
        *,
        outside: np.ndarray,
        beyond: np.ndarray,
    ) -> TargetPrediction:
        """Return the log of the target, its interval's half-width and the expert differences.

        ``X`` are the features of the rows, ``outside`` their octaves outside the training range,
        and ``beyond`` the same less `reach`.
        """
        rows = Rows.from_table(rows)
        neighbors = self._neighbor_features(rows)
        values = self.experts.predict(X, neighbors)
        row_kind = self._row_kind(neighbors, self._is_new_device(rows))
        predictions = ExpertPredictions.from_experts(values, X, neighbors, row_kind)

        combined = self.stack.combine(predictions)
        log_unit = self.scale.log_unit(features, rows) + self.scale.log_scale(rows)
        return TargetPrediction(
            log_value=combined + log_unit,
            half_width=self.interval.half_width(predictions, outside, beyond),
            expert_differences=values - combined[:, None],
        )

    def _fit_scale(
        self,
        regime: Regime,
        features: FeatureSet,
        rows: pd.DataFrame,
        X: np.ndarray,
        problems: np.ndarray,
    ) -> TargetTable:
        """Fit the unit; return the rows in the form that experts need."""
        log_target = np.log(rows[self.target].to_numpy(dtype=float))
        self.scale = regime.fit_scale(self.target, features, rows, log_target, problems)
        y = log_target - self.scale.log_scale(rows) - self.scale.log_unit(features, rows)

        neighbor_index = NeighborIndex.from_runs(rows)
        positions = neighbor_index.locate(rows)
        neighbor_index.measure_axes(positions, y)
        return TargetTable(
            columns=features.columns_ or (),
            X=X,
            y=y,
            has_unit=self.scale.roofline is not None,
            rows=rows,
            problems=problems,
            neighbor_index=neighbor_index,
            positions=positions,
            holdout_axes=holdout_axes(neighbor_index.axes),
        )

    def _trial(
        self,
        table: TargetTable,
        is_held_out: np.ndarray,
        *,
        number: int,
        smooth: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> Trials:
        """Return what experts predict for held-out rows after learning from the others.

        Large trials are sampled. Neighbors are all the other rows.
        """
        known = np.flatnonzero(~is_held_out)
        training_rows = _sample(known, MAX_TRIAL_ROWS, rng)
        scored_rows = _sample(np.flatnonzero(is_held_out), MAX_SCORED_ROWS, rng)
        neighbor_rows = None if self.neighbor_index is None else known
        experts = Experts.fit(
            lambda: self.make_regressor().quick(),
            table,
            rows=training_rows,
            neighbor_rows=neighbor_rows,
            smooth=smooth,
            rng=rng,
        )

        X = table.X[scored_rows]
        neighbors = None
        if neighbor_rows is not None:
            neighbors = table.neighbor_features(neighbor_rows, scored_rows)
        values = experts.predict(X, neighbors)
        device = pd.factorize(table.rows["device"])[0]
        is_new_device = ~np.isin(device[scored_rows], device[known])
        row_kind = self._row_kind(neighbors, is_new_device)
        predictions = ExpertPredictions.from_experts(values, X, neighbors, row_kind)
        return Trials(predictions, rows=scored_rows, holdout=np.full(len(scored_rows), number))

    def _fit_stack(
        self, regime: Regime, trials: Trials, true_value: np.ndarray, problems: np.ndarray
    ) -> np.ndarray:
        """Fit the weights; return each trial's values with weights from the others."""
        self.stack = regime.fit_stack(trials.predictions, true_value, problems)
        combined = np.empty(len(true_value))
        for number in np.unique(trials.holdout):
            is_scored = trials.holdout == number
            stack = self.stack
            if not is_scored.all():
                others = ~is_scored
                stack = regime.fit_stack(
                    trials.predictions[others], true_value[others], problems[others]
                )
            combined[is_scored] = stack.combine(trials.predictions[is_scored])
        return combined

    def _measure_reach(
        self, table: TargetTable, held_out: list[np.ndarray], trials: Trials
    ) -> np.ndarray:
        """Set `reach`; return how far outside their trial's training range the scored rows are."""
        self.reach = {}
        octaves_outside = []
        rows = Rows(table.rows)
        for number, is_held_out in enumerate(held_out):
            known_range = TrainingRange.from_runs(rows.take(np.flatnonzero(~is_held_out)))
            scored_rows = rows.take(trials.rows[trials.holdout == number])
            octaves_outside.append(known_range.octaves_outside(scored_rows))
            for column, octaves in known_range.reach(scored_rows).items():
                self.reach[column] = max(octaves, self.reach.get(column, 0.0))
        return np.concatenate(octaves_outside)

    def _row_kind(self, neighbors: np.ndarray | None, is_new_device: np.ndarray) -> np.ndarray:
        """Return the kind of each row: `NEW_DEVICE`, or its axes with neighbors on both sides."""
        axes: np.ndarray | int = 0
        if neighbors is not None and self.neighbor_index is not None:
            axes = self.neighbor_index.two_sided_axes(neighbors)
        return np.where(is_new_device, NEW_DEVICE, axes)

    def _is_new_device(self, rows: Rows) -> np.ndarray:
        if "device" not in rows:
            return np.zeros(len(rows), dtype=bool)
        names, codes = rows.distinct("device")
        return ~np.isin(names, self.devices)[codes]

    def _neighbor_features(self, rows: Rows) -> np.ndarray | None:
        index = self.neighbor_index
        if index is None:
            return None
        return index.neighbor_features(self.positions, self.values, index.locate(rows))

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        folder.mkdir()
        self.experts.save(folder)
        self.interval.save(folder, INTERVAL_NAME)
        self.stack.save(folder)
        card: dict[str, Any] = {
            "scale": self.scale.to_json(),
            "reach": self.reach,
            "devices": self.devices,
            "experts": self.experts.parts,
            "neighbors": None,
        }
        index = self.neighbor_index
        if index is not None:
            self.positions.save(folder / NEIGHBORS_FILE, self.values)
            card["neighbors"] = {
                "axes": [vars(axis) for axis in index.axes],
                "series": index.group_columns,
                "repeated": [vars(size) for size in index.repeated],
            }
        (folder / CARD_FILE).write_text(json.dumps(card, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, target: Target, make_regressor: RegressorFactory) -> Self:
        """Read from ``folder``."""
        model = cls(target, make_regressor)
        card = read_json(folder / CARD_FILE)
        model.scale = TargetScale.from_json(card["scale"], target)
        model.reach = dict(card["reach"])
        model.devices = list(card["devices"])
        model.experts = Experts.load(
            folder,
            type(make_regressor()),
            card["experts"],
            has_unit=model.scale.roofline is not None,
        )
        model.stack = load_stack(folder)
        model.interval = load_interval(folder, INTERVAL_NAME)

        saved = card["neighbors"]
        if saved is not None:
            repeated = [
                RepeatedSize(size["column"], tuple(size["factors"]), size["ratio"])
                for size in saved["repeated"]
            ]
            axes = [Axis(**axis) for axis in saved["axes"]]
            model.neighbor_index = NeighborIndex(axes, saved["series"], repeated)
            model.positions, model.values = AxisPositions.load(folder / NEIGHBORS_FILE)
        return model


def _sample(rows: np.ndarray, max_rows: int, rng: np.random.Generator) -> np.ndarray:
    if len(rows) <= max_rows:
        return rows
    return np.sort(rng.choice(rows, max_rows, replace=False))

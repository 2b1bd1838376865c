"""The model of one target: experts, their weights, and the interval.

Rows are held out in every way in which a row can be new. The predictions of the experts
(`foretune.models.experts`) for them give the weights (`foretune.models.stack`). The errors of the
weighted mean give the interval (`foretune.models.interval`). How much of this is learned depends on
the number of problems (`foretune.models.regime`).

Arrays: ``X`` are features (rows, features); ``y`` is the log of the target over its divisor (rows);
``neighbors`` are features of each row's nearest measured runs (rows, features), or None.

What the target is divided by (`foretune.models.targets`):

- Its *scale*: a millisecond or a watt; for power, the limit of the row's board if it is known.
- Its *unit*, relative to the scale: the calibrated roofline, 1 if there is none.
- The *divisor* is their product, so models learn what scale and roofline do not explain.

Three distances, all in octaves:

- ``octaves_outside``: how far a row is outside the range of the training rows
  (`foretune.models.training_range`). Held-out rows are outside the range of the other rows, too;
  `TargetModel.reach` is how far, for each column, so errors are known up to there.
- ``octaves_beyond_reach``: how far a row is outside even if every range is wider by that reach.
- ``octaves_beyond_frontier``: how much larger a problem is than all that were measured
  (`foretune.models.frontier`), though each of its sizes may be in its range. It is known with a
  learned law only, and counts in both other distances.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.features.featureset import FeatureSet
from foretune.models.axis_positions import AxisPositions
from foretune.models.distinct_problems import distinct_problems
from foretune.models.expert_predictions import (
    BEYOND_FRONTIER,
    NEW_DEVICE,
    ExpertPredictions,
    HeldOutPredictions,
)
from foretune.models.experts import Experts, RegressorFactory
from foretune.models.frontier import Frontier
from foretune.models.holdouts import holdout_axes, largest_holdouts
from foretune.models.interval import Interval, load_interval
from foretune.models.learned_law import LearnedLaw, learn_law
from foretune.models.neighbors import Axis, NeighborIndex
from foretune.models.regime import Regime, choose_regime
from foretune.models.repeated_sizes import RepeatedSize
from foretune.models.repeats import Repeats
from foretune.models.smooth_expert import SmoothExpert
from foretune.models.stack import ConvexStack, load_stack
from foretune.models.target_names import Target
from foretune.models.target_table import TargetTable
from foretune.models.targets import TargetScale
from foretune.models.training_range import TrainingRange
from foretune.support.files import read_json

MAX_ROWS = 250_000
"""Maximum number of rows to learn from (random sample). Training sees neighbors within the sample;
predictions see the neighbors among all rows."""
MAX_HOLDOUT_TRAINING_ROWS = 20_000
"""Maximum number of rows that experts learn from while a hold-out is left out."""
MAX_SCORED_ROWS = 5_000
"""Maximum number of rows of a hold-out that are predicted."""
MIN_SMOOTH_ROWS = 40
"""Minimum rows for a smooth expert: fewer do not tell its hyperparameters."""
MAX_SMOOTH_ROWS = 3000
"""Maximum rows for a smooth expert: it is slow, and sees 1000 rows at most. Both numbers are of
docs/decisions/few-runs-smooth-expert.md."""
MIN_OCTAVES_BEYOND_FRONTIER = 0.25
"""Rows that are farther beyond the frontier have weights and widths of their own. Nearer ones are
a fifth larger at most, and count as rows inside."""
CARD_FILE = "target.json"
NEIGHBORS_FILE = "neighbors.npz"
INTERVAL_FILE_STEM = "spread"
"""The interval's file names start with this word, as the format of saved predictors has it."""


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
        scale: scale and unit of the target.
        experts: the fitted models.
        stack: their weights.
        interval: half-widths of the interval.
        neighbor_index: finds neighbors; None if they are not used.
        neighbor_positions: where the measured runs are in that index.
        neighbor_values: their target over its divisor, a log.
        devices: names of the training devices.
        reach: column -> how far outside the range of the others held-out rows were, in octaves.
        law: the law of a time that was learned, if nothing is known of the kernel's work.
        frontier: of the training rows, with a law.
        frontier_reach: how far beyond the frontier of the others held-out rows were, in octaves.
    """

    scale: TargetScale
    experts: Experts
    stack: ConvexStack
    interval: Interval
    neighbor_positions: AxisPositions
    neighbor_values: np.ndarray
    devices: list[str]
    reach: dict[str, float]

    def __init__(self, target: Target, make_regressor: RegressorFactory, seed: int = 0) -> None:
        self.target = target
        self.make_regressor = make_regressor
        self.seed = seed
        self.neighbor_index: NeighborIndex | None = None
        self.law: LearnedLaw | None = None
        self.frontier: Frontier | None = None
        self.frontier_reach = 0.0

    def fit(
        self,
        features: FeatureSet,
        rows: pd.DataFrame,
        X: np.ndarray,
        repeats: Repeats | None = None,
        law: LearnedLaw | None = None,
    ) -> Self:
        """Fit to ``rows``, which all have the target, with features ``X``.

        The interval covers any of the ``repeats``, the other measurements of the same rows. Only
        times have a ``law``, because it adds up times. Without one that was learned from the rows
        before, it is learned here if there is no roofline.
        """
        rng = np.random.default_rng(self.seed)
        self.devices = sorted(rows["device"].astype(str).unique())

        # 1. With few problems, rules take the place of what many problems can teach.
        problems = distinct_problems(rows)
        regime = choose_regime(rows, problems, self.seed)

        # 2. What the target is divided by is calibrated on all rows.
        log_target = np.log(rows[self.target].to_numpy(dtype=float))
        self.scale = regime.fit_scale(self.target, features, rows, log_target, problems)
        self.law = law
        if law is None and self.target == "time_ms" and self.scale.roofline is None:
            self.law = learn_law(rows, log_target, problems)
        full_table = self._prepare_table(features, rows, X, log_target, problems)

        # 3. Everything else is learned from a sample of a large table. `sampled_rows` says which
        # of the given rows each row of `table` is; below, row numbers are those in `table`.
        sampled_rows = _sample(np.arange(len(rows)), MAX_ROWS, rng)
        table = full_table.subset(sampled_rows)

        # 4. Which experts are there, besides trees? See `_is_smooth_on_law`.
        with_neighbors = regime.uses_neighbors(table)
        self.neighbor_index = None
        if with_neighbors:
            self.neighbor_index = full_table.neighbor_index
            self.neighbor_positions = full_table.positions
            self.neighbor_values = full_table.y
        smooth_expert = None
        smooth_on_law = None
        if MIN_SMOOTH_ROWS <= len(table) <= MAX_SMOOTH_ROWS:
            if _is_smooth_on_law(table, with_neighbors=with_neighbors):
                smooth_on_law = _smooth_expert(table, _log_over_law(table), rng)
            elif not with_neighbors:
                smooth_expert = _smooth_expert(table, table.y, rng)

        # 5. Hold rows out, and predict them by experts that learned from the other rows. The unit,
        # the axes of neighbors and the smooth expert's hyperparameters are not fitted again, though
        # they have seen the held-out rows: they are few numbers, which a hold-out among many
        # problems hardly changes. With few problems, the interval allows for that
        # (`foretune.models.t_width`).
        holdouts = regime.holdouts(table, with_neighbors=with_neighbors, rng=rng)
        if self.law is not None:
            log_law = self.law.laws.log_value(table.law_inputs)
            holdouts += largest_holdouts(table.problems, log_law)
        held_out = HeldOutPredictions.concatenate(
            [
                self._predict_held_out(
                    table,
                    is_held_out,
                    holdout_number=number,
                    smooth=smooth_expert,
                    smooth_on_law=smooth_on_law,
                    rng=rng,
                )
                for number, is_held_out in enumerate(holdouts)
            ]
        )

        # 6. The experts that will predict learn from all rows of the table.
        table_rows = np.arange(len(table))
        self.experts = Experts.fit(
            self.make_regressor,
            table,
            rows=table_rows,
            neighbor_rows=table_rows if with_neighbors else None,
            smooth=smooth_expert,
            smooth_on_law=smooth_on_law,
            rng=rng,
        )

        # 7. Their weights are fitted to all held-out rows.
        true_value = table.y[held_out.rows]
        scored_problems = table.problems[held_out.rows]
        self.stack = regime.fit_stack(held_out.predictions, true_value, scored_problems)

        # 8. Errors of the weighted mean. For the rows of a hold-out, the weights are fitted to the
        # other hold-outs: its own rows would make the errors look too small.
        cross_fitted = self._combine_cross_fitted(regime, held_out, true_value, scored_problems)
        errors = true_value - cross_fitted

        # 9. The interval must hold for any measurement of a run, not only for the newest one. The
        # draws have a generator of their own: they do not depend on the steps before.
        if repeats is not None:
            measured_rows = sampled_rows[held_out.rows]
            errors += repeats.draw(measured_rows, rng=np.random.default_rng(self.seed))

        # 10. The interval is fitted to the errors, and to how far outside the other rows they were.
        octaves_outside, self.reach = _distances_from_others(table, holdouts, held_out)
        self.frontier = None
        self.frontier_reach = 0.0
        if self.law is not None:
            self.frontier = Frontier.fit(table.octaves_of_sizes)
            self.frontier_reach = float(held_out.octaves_beyond_frontier.max())
            octaves_outside = np.maximum(octaves_outside, held_out.octaves_beyond_frontier)
        log_target_there = true_value + table.log_divisor[held_out.rows]
        self.interval = regime.fit_interval(
            held_out, errors, octaves_outside, scored_problems, log_target_there
        )
        return self

    def predict(
        self,
        features: FeatureSet,
        rows: pd.DataFrame | Rows,
        X: np.ndarray,
        *,
        octaves_outside: np.ndarray,
        octaves_beyond_reach: np.ndarray,
    ) -> TargetPrediction:
        """Return the log of the target, its interval's half-width and the expert differences.

        ``X`` are the features of the rows, ``octaves_outside`` their distance from the training
        range, and ``octaves_beyond_reach`` the distance from that range widened by `reach`.
        """
        # Problems beyond the frontier are outside, and beyond the reach of held-out rows.
        rows = Rows.from_table(rows)
        law_inputs = None
        octaves_beyond_frontier = None
        if self.law is not None and self.frontier is not None:
            law_inputs = self.law.work.inputs(rows)
            octaves_of_sizes = self.law.work.octaves_of_sizes(rows)
            octaves_beyond_frontier = self.frontier.octaves_beyond(octaves_of_sizes)
            octaves_outside = np.maximum(octaves_outside, octaves_beyond_frontier)
            octaves_beyond_reach = np.maximum(
                octaves_beyond_reach, octaves_beyond_frontier - self.frontier_reach
            )

        # What each expert predicts, over the divisor.
        neighbors = self._neighbor_features(rows)
        log_divisor = self.scale.log_divisor(features, rows)
        expert_values = self.experts.predict(X, neighbors, law_inputs, log_divisor)
        row_kind = self._row_kind(neighbors, self._is_new_device(rows), octaves_beyond_frontier)
        predictions = ExpertPredictions.from_experts(
            expert_values, X, neighbors, row_kind, octaves_beyond_frontier
        )

        # Their weighted mean, times the divisor.
        combined = self.stack.combine(predictions)
        half_width = self.interval.half_width(predictions, octaves_outside, octaves_beyond_reach)
        return TargetPrediction(
            log_value=combined + log_divisor,
            half_width=half_width,
            expert_differences=expert_values - combined[:, None],
        )

    def _prepare_table(
        self,
        features: FeatureSet,
        rows: pd.DataFrame,
        X: np.ndarray,
        log_target: np.ndarray,
        problems: np.ndarray,
    ) -> TargetTable:
        """Return the rows over the fitted divisor, with an index of their neighbors."""
        log_scale = self.scale.log_scale(rows)
        log_unit = self.scale.log_unit(features, rows)
        y = log_target - log_scale - log_unit

        neighbor_index = NeighborIndex.from_runs(rows)
        positions = neighbor_index.locate(rows)
        neighbor_index.measure_axes(positions, y)

        law_inputs = np.empty((len(rows), 0))
        octaves_of_sizes = law_inputs
        if self.law is not None:
            law_inputs = self.law.work.inputs(Rows(rows))
            octaves_of_sizes = self.law.work.octaves_of_sizes(Rows(rows))
        return TargetTable(
            columns=features.columns_ or (),
            X=X,
            y=y,
            log_divisor=log_scale + log_unit,
            has_roofline=self.scale.roofline is not None,
            rows=rows,
            problems=problems,
            neighbor_index=neighbor_index,
            positions=positions,
            holdout_axes=holdout_axes(neighbor_index.axes),
            law=self.law,
            law_inputs=law_inputs,
            octaves_of_sizes=octaves_of_sizes,
        )

    def _predict_held_out(
        self,
        table: TargetTable,
        is_held_out: np.ndarray,
        *,
        holdout_number: int,
        smooth: SmoothExpert | None,
        smooth_on_law: SmoothExpert | None,
        rng: np.random.Generator,
    ) -> HeldOutPredictions:
        """Return what experts predict for held-out rows after learning from the others.

        ``is_held_out`` is a mask of the table's rows. Of many rows, a sample is learned from and
        predicted. ``smooth`` and ``smooth_on_law`` have the smooth experts' hyperparameters.
        """
        # Neighbors are all the other rows, also those that are not learned from.
        other_rows = np.flatnonzero(~is_held_out)
        neighbor_rows = None if self.neighbor_index is None else other_rows

        # Quick regressors: there are many hold-outs, and only the size of errors matters.
        training_rows = _sample(other_rows, MAX_HOLDOUT_TRAINING_ROWS, rng)
        scored_rows = _sample(np.flatnonzero(is_held_out), MAX_SCORED_ROWS, rng)
        experts = Experts.fit(
            lambda: self.make_regressor().quick(),
            table,
            rows=training_rows,
            neighbor_rows=neighbor_rows,
            smooth=smooth,
            smooth_on_law=smooth_on_law,
            rng=rng,
        )

        X = table.X[scored_rows]
        neighbors = None
        if neighbor_rows is not None:
            neighbors = table.neighbor_features(neighbor_rows, scored_rows)
        expert_values = experts.predict(
            X, neighbors, table.law_inputs[scored_rows], table.log_divisor[scored_rows]
        )

        # How far are the problems beyond all others together?
        octaves_beyond_frontier = None
        if table.law is not None:
            frontier = Frontier.fit(table.octaves_of_sizes[other_rows])
            octaves_beyond_frontier = frontier.octaves_beyond(table.octaves_of_sizes[scored_rows])

        # A device is new if all its rows are held out.
        device = pd.factorize(table.rows["device"])[0]
        is_new_device = ~np.isin(device[scored_rows], device[other_rows])
        row_kind = self._row_kind(neighbors, is_new_device, octaves_beyond_frontier)
        predictions = ExpertPredictions.from_experts(
            expert_values, X, neighbors, row_kind, octaves_beyond_frontier
        )
        if octaves_beyond_frontier is None:
            octaves_beyond_frontier = np.zeros(len(scored_rows))
        return HeldOutPredictions(
            predictions,
            rows=scored_rows,
            holdout_numbers=np.full(len(scored_rows), holdout_number),
            octaves_beyond_frontier=octaves_beyond_frontier,
        )

    def _combine_cross_fitted(
        self,
        regime: Regime,
        held_out: HeldOutPredictions,
        true_value: np.ndarray,
        problems: np.ndarray,
    ) -> np.ndarray:
        """Return the weighted mean of each held-out row, with weights from the other hold-outs.

        If there is only one hold-out, it keeps the weights of `stack`, which it was used to fit.
        """
        predictions = held_out.predictions
        combined = np.empty(len(true_value))
        for number in np.unique(held_out.holdout_numbers):
            in_holdout = held_out.holdout_numbers == number
            stack = self.stack
            if not in_holdout.all():
                others = ~in_holdout
                stack = regime.fit_stack(predictions[others], true_value[others], problems[others])
            combined[in_holdout] = stack.combine(predictions[in_holdout])
        return combined

    def _row_kind(
        self,
        neighbors: np.ndarray | None,
        is_new_device: np.ndarray,
        octaves_beyond_frontier: np.ndarray | None,
    ) -> np.ndarray:
        """Return the kind of each row, a number (rows).

        It is `NEW_DEVICE`; else `BEYOND_FRONTIER`; else the number of axes with neighbors on both
        sides, 0 without neighbors.
        """
        row_kind = np.zeros(len(is_new_device), dtype=int)
        if neighbors is not None and self.neighbor_index is not None:
            row_kind = self.neighbor_index.two_sided_axes(neighbors)
        if octaves_beyond_frontier is not None:
            is_beyond = octaves_beyond_frontier > MIN_OCTAVES_BEYOND_FRONTIER
            row_kind = np.where(is_beyond, BEYOND_FRONTIER, row_kind)
        return np.where(is_new_device, NEW_DEVICE, row_kind)

    def _is_new_device(self, rows: Rows) -> np.ndarray:
        if "device" not in rows:
            return np.zeros(len(rows), dtype=bool)
        names, codes = rows.distinct("device")
        return ~np.isin(names, self.devices)[codes]

    def _neighbor_features(self, rows: Rows) -> np.ndarray | None:
        index = self.neighbor_index
        if index is None:
            return None
        return index.neighbor_features(
            self.neighbor_positions, self.neighbor_values, index.locate(rows)
        )

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        folder.mkdir()
        self.experts.save(folder)
        self.interval.save(folder, INTERVAL_FILE_STEM)
        self.stack.save(folder)
        card: dict[str, Any] = {
            "scale": self.scale.to_json(),
            "reach": self.reach,
            "devices": self.devices,
            "experts": self.experts.parts,
            "neighbors": None,
        }
        if self.law is not None and self.frontier is not None:
            card["law"] = {
                **self._fitted_law(self.law).to_json(),
                "frontier": self.frontier.to_json(),
                "reach": self.frontier_reach,
            }
        index = self.neighbor_index
        if index is not None:
            self.neighbor_positions.save(folder / NEIGHBORS_FILE, self.neighbor_values)
            card["neighbors"] = {
                "axes": [vars(axis) for axis in index.axes],
                "series": index.group_columns,
                "repeated": [vars(size) for size in index.repeated],
            }
        (folder / CARD_FILE).write_text(json.dumps(card, indent=1), encoding="utf-8")

    def _fitted_law(self, law: LearnedLaw) -> LearnedLaw:
        """Return the law as the experts use it: their fit is the last one."""
        on_law = self.experts.on_law
        return law if on_law is None else replace(law, laws=on_law.laws)

    @classmethod
    def load(cls, folder: Path, target: Target, make_regressor: RegressorFactory) -> Self:
        """Read from ``folder``."""
        model = cls(target, make_regressor)
        card = read_json(folder / CARD_FILE)
        model.scale = TargetScale.from_json(card["scale"], target)
        model.reach = dict(card["reach"])
        model.devices = list(card["devices"])
        law = card.get("law")
        if law is not None:
            model.law = LearnedLaw.from_json(law)
            model.frontier = Frontier.from_json(law["frontier"])
            model.frontier_reach = float(law["reach"])
        model.experts = Experts.load(
            folder,
            type(make_regressor()),
            card["experts"],
            has_roofline=model.scale.roofline is not None,
            law=model.law,
        )
        model.stack = load_stack(folder)
        model.interval = load_interval(folder, INTERVAL_FILE_STEM)

        saved = card["neighbors"]
        if saved is not None:
            repeated = [
                RepeatedSize(size["column"], tuple(size["factors"]), size["ratio"])
                for size in saved["repeated"]
            ]
            axes = [Axis(**axis) for axis in saved["axes"]]
            model.neighbor_index = NeighborIndex(axes, saved["series"], repeated)
            positions, values = AxisPositions.load(folder / NEIGHBORS_FILE)
            model.neighbor_positions = positions
            model.neighbor_values = values
        return model


def _is_smooth_on_law(table: TargetTable, *, with_neighbors: bool) -> bool:
    """Return whether the smooth expert models what a learned law leaves.

    There is one smooth expert at most. It models what the best description of the kernel leaves:

                               neighbors used       no neighbors
        no law                 no smooth expert     the target over its divisor
        law and roofline       over the law         the target over its divisor
        law, no roofline       over the law         over the law

    Without a law, neighbors take its place: a tree model corrects the interpolation between them.
    """
    if table.law is None:
        return False
    return with_neighbors or not table.has_roofline


def _log_over_law(table: TargetTable) -> np.ndarray:
    """Return the log of the target over its learned law (rows)."""
    assert table.law is not None
    return table.y + table.log_divisor - table.law.laws.log_value(table.law_inputs)


def _smooth_expert(
    table: TargetTable, values: np.ndarray, rng: np.random.Generator
) -> SmoothExpert:
    """Return a smooth expert on ``values`` (rows) with fitted hyperparameters."""
    return SmoothExpert.fit_hyperparameters(table.columns, table.X, values, rng)


def _distances_from_others(
    table: TargetTable, holdouts: list[np.ndarray], held_out: HeldOutPredictions
) -> tuple[np.ndarray, dict[str, float]]:
    """Return how far held-out rows are outside the range of the rows that were not held out.

    Returns the octaves of each row, and the maximum of each column, `TargetModel.reach`.
    """
    rows = Rows(table.rows)
    octaves_outside = []
    reach: dict[str, float] = {}
    for number, is_held_out in enumerate(holdouts):
        range_of_others = TrainingRange.from_runs(rows.take(np.flatnonzero(~is_held_out)))
        scored_rows = rows.take(held_out.rows[held_out.holdout_numbers == number])
        octaves_outside.append(range_of_others.octaves_outside(scored_rows))
        for column, octaves in range_of_others.reach(scored_rows).items():
            reach[column] = max(octaves, reach.get(column, 0.0))
    return np.concatenate(octaves_outside), reach


def _sample(rows: np.ndarray, max_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return at most ``max_rows`` of the row numbers, at random and in ascending order."""
    if len(rows) <= max_rows:
        return rows
    return np.sort(rng.choice(rows, max_rows, replace=False))

"""The model of one target: experts, what to believe when, and how far to trust it.

Rows are held out in all the ways in which a row can be new. What the experts (`Experts`) say of
them teaches the blend (`Blend`) whom to believe where, and how far the blend is off teaches the
spread (`Spread`), the interval. Where runs have no neighbours (configurations drawn at random)
there are two experts at most, trees and a smooth one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features import FeatureSet
from foretune.features.arrays import OneRow, Rows
from foretune.models.experts.experts import Experts, Make, Table, circumstances
from foretune.models.experts.neighbours import ALONE, Axis, Neighbourhood
from foretune.models.experts.places import Places
from foretune.models.experts.ratios import without_sizes
from foretune.models.experts.repeated_sizes import Repeated
from foretune.models.experts.smooth import Smooth
from foretune.models.target.blend import Blend
from foretune.models.target.holdouts import kinds_of_novelty, mixed_holdouts
from foretune.models.target.problems import are_few, distinct_problems, exact_problems
from foretune.models.target.repeats import Repeats
from foretune.models.target.spread import Spread
from foretune.models.target.targets import Target, Unit
from foretune.models.training_range import TrainingRange
from foretune.models.trees.regressor import Regressor
from foretune.models.validation.splits import fold_of_rows

HOLDOUTS, MORE_HOLDOUTS = 3, 6
ROWS_OF_MORE = 5_000
"""Tables of so many rows are held out of more often: it costs little there, and judges better."""
MOST_ROWS = 250_000
"""Models learn from at most so many rows, drawn at random; to predict, neighbours are all rows."""
MOST_TRIAL_ROWS, MOST_JUDGED = 20_000, 5_000
"""Models that only serve to blend and to calibrate learn from, and are judged on, at most so many
rows each."""
LEAST_WITH_NEIGHBOURS = 0.5
"""Share of rows that must have neighbours, or neighbours are left out."""
LEAST_DEVICES, MOST_DEVICES = 3, 4
"""With so many devices, so many are held out whole, one at a time: a new one will come."""
FOLDS_OF_FEW = 6
"""Where problems are few, they are held out in so many parts."""
LEAST_ROWS = 200
"""Fewer rows have no neighbours worth the name."""
LEAST_SMOOTH, MOST_SMOOTH = 40, 3000
"""Tables of so many rows have a smooth expert."""


class TargetModel:
    """Learns one target.

    Args:
        target: ``time_ms`` or ``power_w``.
        make: returns a new regressor, unfitted.
        seed: of everything random.

    Attributes:
        unit: what the target is measured against.
        experts, spread: the parts.
        blend: how the experts are combined; None where there is one.
        hood: the neighbourhood; None where rows have no neighbours.
        places, values: the neighbours, what they are worth; set where there are some.
        units: log of the unit of each neighbour; None where the target has none.
        reach: column -> how far outside the range of those learned from rows were held out.
        devices: of training, where they were too few to hold one out; None else, and where problems
            are few.
    """

    unit: Unit
    experts: Experts
    spread: Spread
    places: Places
    values: np.ndarray
    reach: dict[str, float]

    def __init__(self, target: Target, make: Make, seed: int = 0) -> None:
        self.target = target
        self.make = make
        self.seed = seed
        self.blend: Blend | None = None
        self.hood: Neighbourhood | None = None
        self.units: np.ndarray | None = None
        self.devices: list[str] | None = None

    def fit(
        self,
        features: FeatureSet,
        rows: pd.DataFrame,
        X: np.ndarray,
        repeats: Repeats | None = None,
    ) -> Self:
        """Learn.

        Args:
            features: fitted.
            rows: to learn from, all of which have the target.
            X: their features.
            repeats: other measurements of the same rows. The interval is to hold for any of them.
        """
        rng = np.random.default_rng(self.seed)
        problems = distinct_problems(rows)
        few = are_few(problems, exact_problems(rows))
        whole = self._table(features, rows, X, problems if few else None)
        some = _sample(np.arange(len(rows)), MOST_ROWS, rng)
        table, rows = whole.of(some), rows.iloc[some].reset_index(drop=True)
        alone = few or not _has_neighbours(table)
        if few:
            held_out = _problems_held_out(problems[some], rng) + _devices_held_out(rows, rng)
        else:
            held_out = self._holdouts(table, rows, alone, rng)
            known = sorted(rows["device"].astype(str).unique())
            self.devices = known if len(known) < LEAST_DEVICES else None
        smooth = None
        if LEAST_SMOOTH <= len(rows) <= MOST_SMOOTH:
            smooth = Smooth.tuned(table.columns, table.X, table.y, rng)
        trials = [self._trial(table, out, alone, smooth, rng) for out in held_out]
        number = np.repeat(np.arange(len(trials)), [len(trial[2]) for trial in trials])
        Z, opinions, wanted, company = (
            np.concatenate([trial[i] for trial in trials]) for i in range(4)
        )
        outside = self._outside(rows, held_out, [trial[2] for trial in trials])
        truth = table.y[wanted]
        every, judged = np.arange(len(table.y)), problems[some][wanted]
        predicted = opinions[:, 0]
        if opinions.shape[1] > 1:
            if few:
                self.blend, predicted = Blend.fit_few(opinions, truth, number, judged)
            else:
                new = company == ALONE
                self.blend, predicted = Blend.fit(Z, opinions, truth, number, new, self.seed)
        if alone:
            self.experts = Experts.fit_alone(self.make, table, every, smooth, rng)
        else:
            self.experts = Experts.fit_all(self.make, table, every, every, smooth, rng)
            self.hood, self.places, self.values = whole.hood, whole.places, whole.y
            self.units = whole.log_unit if whole.has_unit else None
        errors = truth - predicted
        if repeats is not None:
            errors += repeats.draw(some[wanted], np.random.default_rng(self.seed))
        of = judged if few else None
        if few:
            Z = _disagreement(opinions, predicted)
        self.spread = Spread.fit(Z, errors, number, outside, company, self.seed, of)
        return self

    def predict(
        self,
        features: FeatureSet,
        rows: pd.DataFrame | Rows,
        X: np.ndarray,
        outside: np.ndarray,
        beyond: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, per row, the log of the target, its interval's half-width, and what else is said.

        The last are differences of every expert's log from the first (rows, experts), NaN where one
        cannot tell.

        Args:
            features: those of training.
            rows: to predict.
            X: their features.
            outside: how many octaves each lies outside the training range.
            beyond: the same less what `reach` covers.
        """
        rows = Rows.of(rows)
        log_unit = self.unit.log(features, rows)
        look = self._look(rows, log_unit)
        opinions = self.experts.opinions(X, look, log_unit)
        Z = circumstances(X, look, opinions)
        company = _company(self.hood, look, len(X))
        log_value = opinions[:, 0]
        if self.blend is not None:
            log_value = self.blend.predict(Z, opinions, company == ALONE, self._unheard(rows))
        differences = opinions - log_value[:, None]
        if look is None and self.unit.roofline:  # with neighbours the unit is an opinion
            differences = np.column_stack([differences, -log_value])
        if self.spread.usual is not None:
            Z = _disagreement(opinions, log_value)
        width = self.spread.half_width(Z, outside, beyond, company)
        return log_value + log_unit + self.unit.log_scale(rows), width, differences

    def _unheard(self, rows: Rows) -> np.ndarray:
        """Return which rows are of a device that is new where none was held out."""
        if self.devices is None or "device" not in rows:
            return np.zeros(len(rows), dtype=bool)
        names, codes = rows.distinct("device")
        return ~np.isin(names, self.devices)[codes]

    def _look(self, rows: Rows, log_unit: np.ndarray) -> np.ndarray | None:
        """Return what rows see of their neighbours; None where there are none."""
        if self.hood is None:
            return None
        hood = self.hood
        wanted = hood.locate_one(rows) if isinstance(rows, OneRow) else hood.locate(rows)
        units = None if self.units is None else (self.units, log_unit)
        return hood.look(self.places, self.values, wanted, units=units)

    def _table(
        self,
        features: FeatureSet,
        rows: pd.DataFrame,
        X: np.ndarray,
        few: np.ndarray | None,
    ) -> Table:
        """Return the rows as experts need them; ``few``: their problems, where these are few."""
        log_target = np.log(rows[self.target].to_numpy(dtype=float))
        self.unit = Unit.fit(self.target, features, rows, log_target, few)
        log_unit, log_target = self.unit.log(features, rows), log_target - self.unit.log_scale(rows)
        hood = Neighbourhood.of(rows)
        places = hood.locate(rows)
        hood.measure_axes(places, log_target - log_unit)
        kinds = kinds_of_novelty(hood.axes)
        columns = features.columns_ or ()
        ratios = None if few is None else without_sizes(columns, X, few)
        return Table(columns, X, log_target - log_unit, log_unit, hood, places, kinds, ratios)

    def _holdouts(
        self, table: Table, rows: pd.DataFrame, alone: bool, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return masks of the rows to hold out together."""
        count = MORE_HOLDOUTS if len(rows) <= ROWS_OF_MORE else HOLDOUTS
        if not alone:
            mixed = mixed_holdouts(table.places, table.kinds, count, rng)
            return [*mixed, *_devices_held_out(rows, rng)]
        folds = fold_of_rows(rows, "grouped", self.seed, "task", count)
        if folds is None:
            folds = fold_of_rows(rows, "random", self.seed, folds=count)
        assert folds is not None  # five rows at least
        return [folds == fold for fold in np.unique(folds)]

    def _trial(
        self,
        table: Table,
        out: np.ndarray,
        alone: bool,
        smooth: Smooth | None,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return circumstances, opinions, numbers and company of the rows held out."""
        known = np.flatnonzero(~out)
        some = _sample(known, MOST_TRIAL_ROWS, rng)
        wanted = _sample(np.flatnonzero(out), MOST_JUDGED, rng)
        X, log_unit = table.X[wanted], table.log_unit[wanted]
        if alone:
            look, experts = None, Experts.fit_alone(self._quick, table, some, smooth, rng, True)
        else:
            experts = Experts.fit_all(self._quick, table, known, some, smooth, rng)
            look = table.look(known, wanted)
        opinions = experts.opinions(X, look, log_unit)
        company = _company(table.hood, look, len(wanted))
        return circumstances(X, look, opinions), opinions, wanted, company

    def _outside(
        self, rows: pd.DataFrame, held_out: list[np.ndarray], judged: list[np.ndarray]
    ) -> np.ndarray:
        """Return how far rows that were held out and judged lay outside; note the `reach`."""
        self.reach, outside = {}, []
        for out, wanted in zip(held_out, judged, strict=True):
            known, there = TrainingRange.of(rows[~out]), rows.iloc[wanted]
            outside.append(known.octaves_outside(there))
            for column, far in known.reach(there).items():
                self.reach[column] = max(far, self.reach.get(column, 0.0))
        return np.concatenate(outside)

    def _quick(self) -> Regressor:
        """Return a new regressor for a trial."""
        return self.make().quick()

    def save(self, folder: Path) -> None:
        """Write the parts to ``folder``."""
        folder.mkdir()
        self.experts.save(folder)
        self.spread.save(folder, "spread")
        card: dict[str, Any] = {
            "unit": self.unit.to_json(),
            "reach": self.reach,
            "experts": self.experts.parts,
            "opinions": None if self.blend is None else len(self.blend.models),
            "neighbours": None,
        } | ({} if self.devices is None else {"devices": self.devices})
        if self.blend is not None:
            self.blend.save(folder)
        if self.hood is not None:
            values = [self.values] if self.units is None else [self.values, self.units]
            self.places.save(folder / "neighbours.npz", np.array(values))
            card["neighbours"] = {
                "axes": [vars(axis) for axis in self.hood.axes],
                "series": self.hood.series,
                "repeated": [vars(size) for size in self.hood.repeated],
            }
        (folder / "target.json").write_text(json.dumps(card, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, target: Target, make: Make) -> Self:
        """Read what `save` wrote."""
        model = cls(target, make)
        card = json.loads((folder / "target.json").read_text(encoding="utf-8"))
        model.unit = Unit.from_json(card["unit"], target)
        model.reach = dict(card["reach"])
        model.devices = card.get("devices")
        neighbours = card["neighbours"]
        model.experts = Experts.load(folder, type(make()), card["experts"])
        model.spread = Spread.load(folder, "spread")
        if neighbours is not None:
            axes = [Axis(**axis) for axis in neighbours["axes"]]
            repeated = [
                Repeated(size["column"], tuple(size["factors"]), size["ratio"])
                for size in neighbours["repeated"]
            ]
            model.hood = Neighbourhood(axes, neighbours["series"], repeated)
            model.places, (model.values, *units) = Places.load(folder / "neighbours.npz")
            model.units = units[0] if units else None
        if card["opinions"] is not None:
            model.blend = Blend.load(folder, card["opinions"])
        return model


def share_places(models: Iterable[TargetModel]) -> None:
    """Let models of the same rows have the same `Places`, so that neighbours are found once."""
    different: list[Places] = []
    for model in models:
        if model.hood is None:
            continue
        for places in different:
            if places.is_like(model.places):
                model.places = places
                break
        else:
            different.append(model.places)


def _disagreement(opinions: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return how far opinions are from the value on average (rows, 1)."""
    return np.nanmean(np.abs(opinions - value[:, None]), axis=1, keepdims=True)


def _problems_held_out(problems: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return masks of whole problems, each held out once."""
    distinct = int(problems.max()) + 1
    fold = rng.permutation(distinct) % min(distinct, FOLDS_OF_FEW)
    return [fold[problems] == number for number in np.unique(fold)]


def _devices_held_out(rows: pd.DataFrame, rng: np.random.Generator) -> list[np.ndarray]:
    """Return masks of whole devices, if there are enough to learn from the others."""
    names = rows["device"].astype(str).to_numpy()
    devices = np.unique(names)
    if len(devices) < LEAST_DEVICES:
        return []
    chosen = rng.permutation(devices)[:MOST_DEVICES]
    return [names == device for device in chosen]


def _has_neighbours(table: Table) -> bool:
    if len(table.y) < LEAST_ROWS or not table.hood.axes:
        return False
    look = table.hood.look(table.places, table.y, table.places)
    return bool(np.isfinite(look[:, -1]).mean() >= LEAST_WITH_NEIGHBOURS)


def _company(hood: Neighbourhood | None, look: np.ndarray | None, rows: int) -> np.ndarray:
    """Return the company of rows; where none has neighbours, the same for all."""
    return np.zeros(rows, dtype=int) if hood is None or look is None else hood.company(look)


def _sample(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))

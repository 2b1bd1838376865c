"""The model of one target: trees, neighbours, what to believe when, and how far to trust it.

Four parts, each on the logarithm of the target over its unit:

- ``tree``: a regressor on the features;
- ``corrected``: the same kind of regressor on features and neighbours, learning what interpolating
  between neighbours misses;
- ``blend``: how much to believe these two, and plain interpolation, where; learned from rows that
  none of them had seen, held out in all the ways in which a row can be new;
- ``spread``: the interval, from the same held-out rows.

Where runs have no neighbours (configurations drawn at random), the tree and the spread remain.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.features import FeatureSet
from foretune.models.blend import Blend
from foretune.models.holdouts import kinds_of_novelty, mixed_holdout
from foretune.models.neighbours import Axis, Neighbourhood, Places
from foretune.models.regressor import Regressor
from foretune.models.splits import fold_of_rows
from foretune.models.spread import Spread
from foretune.models.targets import Target, Unit

HOLDOUTS = 3
VIEWS = 3
"""How often each row is shown to ``corrected``, each time with other neighbours missing."""
VIEW_FOLDS = 5
ONE_SIDED = 0.15
"""Share of views without neighbours above: what a row beyond all runs will see."""
MOST_TRIAL_ROWS = 30_000
"""Models that only serve to blend and to calibrate learn from at most so many rows."""
LEAST_WITH_NEIGHBOURS = 0.5
"""Share of held-out rows that must have neighbours, or neighbours are left out."""
LEAST_ROWS = 200
"""Fewer rows make no blend."""

Make = Callable[[], Regressor]


@dataclass
class _Table:
    """Training rows in every form the parts need."""

    X: np.ndarray
    y: np.ndarray
    hood: Neighbourhood
    places: Places
    kinds: list[tuple[int, ...]]


class TargetModel:
    """Learns one target.

    Args:
        target: ``time_ms`` or ``power_w``.
        make: returns a new regressor, unfitted.
        seed: of everything random.

    Attributes:
        unit: what the target is measured against.
        tree, corrected, blend, spread: the parts; ``corrected`` and ``blend`` may be None.
    """

    def __init__(self, target: Target, make: Make, seed: int = 0) -> None:
        self.target = target
        self.make = make
        self.seed = seed
        self.corrected: Regressor | None = None
        self.blend: Blend | None = None

    def fit(self, features: FeatureSet, rows: pd.DataFrame, X: np.ndarray) -> Self:
        """Learn from ``rows``, all of which have the target; ``X`` are their features."""
        log_target = np.log(rows[self.target].to_numpy(dtype=float))
        self.unit = Unit.fit(self.target, features, rows, log_target)
        y = log_target - self.unit.log(features, rows)
        self.hood = Neighbourhood.of(rows)
        places = self.hood.locate(rows)
        self.hood.measure_axes(places, y)
        table = _Table(X, y, self.hood, places, kinds_of_novelty(len(self.hood.axes)))
        rng = np.random.default_rng(self.seed)
        holdouts = self._holdouts(table, rows, rng)
        trials = [self._trial(table, out, rng) for out in holdouts]
        number = np.repeat(np.arange(len(trials)), [len(t[1]) for t in trials])
        Z, opinions, truth = (np.concatenate([t[i] for t in trials]) for i in range(3))
        predicted = opinions[:, 0]
        if self._uses_neighbours:
            predicted = Blend.out_of_trial(Z, opinions, truth, number, self.seed)
            self.blend = Blend.fit(Z, opinions, truth, self.seed)
        self.spread = Spread.fit(Z, truth - predicted, number, self.seed)
        everything = np.arange(len(y))
        self.tree = self.make().fit(X, y)
        if self._uses_neighbours:
            self.corrected = self._fit_corrected(table, everything, everything, rng)
            self.places, self.values = places, y
        return self

    def predict(
        self, features: FeatureSet, rows: pd.DataFrame, X: np.ndarray, outside: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log of the target and the half-width of its interval, per row.

        Args:
            features: those of training.
            rows: to predict.
            X: their features.
            outside: how many octaves each lies outside the training range.
        """
        tree = self.tree.predict(X)
        Z, log_value = X, tree
        if self.corrected is not None and self.blend is not None:
            look = self.hood.look(self.places, self.values, self.hood.locate(rows))
            opinions = _opinions(look, tree, self.corrected.predict(np.hstack([X, look])))
            Z = _circumstances(look, opinions)
            log_value = self.blend.predict(Z, opinions)
        width = self.spread.half_width(Z, outside)
        return log_value + self.unit.log(features, rows), width

    def _holdouts(
        self, table: _Table, rows: pd.DataFrame, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return what to hold out to blend and calibrate; decide whether neighbours are used."""
        self._uses_neighbours = False
        if table.hood.axes and len(rows) >= LEAST_ROWS:
            mixed = [mixed_holdout(table.places, table.kinds, rng) for _ in range(HOLDOUTS)]
            known, out = ~mixed[0], mixed[0]
            look = table.hood.look(table.places[known], table.y[known], table.places[out])
            if np.isfinite(look[:, -1]).mean() >= LEAST_WITH_NEIGHBOURS:
                self._uses_neighbours = True
                return mixed
        folds = fold_of_rows(rows, "grouped", self.seed, folds=HOLDOUTS)
        if folds is None:
            folds = fold_of_rows(rows, "random", self.seed, folds=HOLDOUTS)
        assert folds is not None  # five rows at least
        return [folds == fold for fold in np.unique(folds)]

    def _trial(
        self, table: _Table, out: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return circumstances, opinions and truth of held-out rows."""
        known, wanted = np.flatnonzero(~out), np.flatnonzero(out)
        some = _sample(known, MOST_TRIAL_ROWS, rng)
        wanted = _sample(wanted, MOST_TRIAL_ROWS, rng)
        X = table.X[wanted]
        tree = self.make().fit(table.X[some], table.y[some]).predict(X)
        if not self._uses_neighbours:
            return X, tree[:, None], table.y[wanted]
        corrected = self._fit_corrected(table, known, some, rng)
        look = table.hood.look(table.places[known], table.y[known], table.places[wanted])
        opinions = _opinions(look, tree, corrected.predict(np.hstack([X, look])))
        return _circumstances(look, opinions), opinions, table.y[wanted]

    def _fit_corrected(
        self, table: _Table, known: np.ndarray, some: np.ndarray, rng: np.random.Generator
    ) -> Regressor:
        """Return a regressor of what interpolation misses in rows ``some``, a part of ``known``."""
        inputs, targets = [], []
        for _ in range(VIEWS):
            look = _view(table, known, some, rng)
            base = look[:, -2]
            seen = np.isfinite(base)
            inputs.append(np.hstack([table.X[some[seen]], look[seen]]))
            targets.append(table.y[some[seen]])
        # What is learned is y itself where there is nothing to interpolate, else the rest.
        X = np.vstack(inputs)
        return _Offset(self.make()).fit(X, np.concatenate(targets))

    def save(self, folder: Path) -> None:
        """Write the parts to ``folder``."""
        folder.mkdir()
        self.tree.save(folder / f"tree{self.tree.suffix}")
        self.spread.save(folder, "spread")
        card: dict[str, Any] = {"unit": self.unit.to_json(), "neighbours": None}
        if self.corrected is not None and self.blend is not None:
            self.corrected.save(folder / f"corrected{self.corrected.suffix}")
            self.blend.save(folder)
            self.places.save(folder / "neighbours.npz", self.values)
            card["neighbours"] = {
                "axes": [vars(axis) for axis in self.hood.axes],
                "series": self.hood.series,
            }
        (folder / "target.json").write_text(json.dumps(card, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, target: Target, make: Make) -> Self:
        """Read what `save` wrote."""
        model, kind = cls(target, make), type(make())
        card = json.loads((folder / "target.json").read_text(encoding="utf-8"))
        model.unit = Unit.from_json(card["unit"])
        model.tree = kind.load(folder / f"tree{kind.suffix}")
        model.spread = Spread.load(folder, "spread")
        if (neighbours := card["neighbours"]) is not None:
            axes = [Axis(**axis) for axis in neighbours["axes"]]
            model.hood = Neighbourhood(axes, neighbours["series"])
            model.places, model.values = Places.load(folder / "neighbours.npz")
            model.corrected = _Offset(kind.load(folder / f"corrected{kind.suffix}"))
            model.blend = Blend.load(folder)
        return model


class _Offset(Regressor):
    """A regressor of ``y`` less the interpolated value, the column before the last."""

    def __init__(self, regressor: Regressor) -> None:
        self.regressor = regressor
        self.suffix = regressor.suffix

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        self.regressor.fit(X, y - X[:, -2])
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return NaN where there is nothing to interpolate."""
        predicted: np.ndarray = self.regressor.predict(X) + X[:, -2]
        return predicted

    def save(self, path: Path) -> None:
        self.regressor.save(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        raise NotImplementedError("the regressor inside is loaded")


def _view(
    table: _Table, known: np.ndarray, some: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return what each of ``some`` sees when the like of it is held out, in one of many ways."""
    look = np.full((len(some), len(table.hood.columns)), np.nan, dtype=np.float32)
    kind_of_row = rng.integers(len(table.kinds), size=len(some))
    one_sided = rng.random(len(some)) < ONE_SIDED
    for number, kind in enumerate(table.kinds):
        combination = table.places.combination(kind)
        fold_of = rng.integers(VIEW_FOLDS, size=int(combination.max()) + 1)
        fold_known, fold_some = fold_of[combination[known]], fold_of[combination[some]]
        for fold in range(VIEW_FOLDS):
            rows = np.flatnonzero((kind_of_row == number) & (fold_some == fold))
            kept = known[fold_known != fold]
            if len(rows) and len(kept):
                look[rows] = table.hood.look(
                    table.places[kept], table.y[kept], table.places[some[rows]], one_sided[rows]
                )
    return look


def _opinions(look: np.ndarray, tree: np.ndarray, corrected: np.ndarray) -> np.ndarray:
    """Return what tree, corrected interpolation and plain interpolation say (rows, 3)."""
    return np.column_stack([tree, corrected, look[:, -2]])


def _circumstances(look: np.ndarray, opinions: np.ndarray) -> np.ndarray:
    """Return what tells whom to believe: the neighbours, and how far the opinions differ."""
    differences = opinions[:, 1:] - opinions[:, :1]
    return np.hstack([look[:, :-2], look[:, -1:], differences]).astype(np.float32)


def _sample(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))

"""Spread: how far off a prediction may be, row by row.

Conformal prediction (Vovk, Gammerman and Shafer, 2005) with normalised residuals (Papadopoulos and
others, ECML 2002): a small model learns from held-out rows how large the error is where, and a
factor makes 90 % of the held-out errors fit. Rows with many neighbours, with few and with none (on
a new device, say) have factors of their own (Mondrian, in their words), or easy ones would make up
for hard ones. How errors grow outside the range of the rows learned from is learned where rows were
held out there; beyond that, intervals grow with the distance.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.trees.boosting import BoostingModel

CONFIDENCE = 0.9
MIN_ROWS = 200
MIN_CLASS_ROWS = 100
MIN_ERROR = 1e-3
"""Errors below a tenth of a percent are noise: none is taken for smaller."""
GROWTH_PER_OCTAVE = 0.05
"""Of a half-width per octave outside the range of few problems: new ones mostly lie outside."""
TAIL_INDEX = 2.0
"""Index of the power law by which errors of problems worse than all seen are taken to fall off."""
MAX_LOG_HALF_WIDTH = 1.5
"""Log of a factor of 4.5: an interval wider than that says nothing, unless errors were as large."""
UNSEEN_GROWTH = 0.4
"""Of a half-width where a row lies outside as none did that was held out: a new device, say."""
ERROR_MODEL_PARAMETERS: dict[str, Any] = {
    "rounds": 40,
    "depth": 3,
    "rate": 0.2,
    "min_child_weight": 10.0,
    "rows": 0.7,
}
"""Parameters of models of errors, which are mostly noise."""


@dataclass
class ConformalInterval:
    """Half-widths of 90 % intervals on the log scale.

    Attributes:
        factor: what the modelled error is multiplied with to hold for 90 % of held-out rows.
        model: of the log of an error's size, or None where held-out rows were few.
        median_half_width: the median half-width of held-out rows.
        factors: company -> its own factor, where enough held-out rows were in it.
        median_error: where problems were few, the median error of held-out rows.
    """

    factor: float
    model: BoostingModel | None = None
    median_half_width: float = float("nan")
    factors: dict[int, float] = field(default_factory=dict)
    median_error: float | None = None

    @classmethod
    def fit(
        cls,
        X: np.ndarray,
        errors: np.ndarray,
        holdouts: np.ndarray,
        octaves_outside: np.ndarray,
        neighbor_class: np.ndarray,
        seed: int = 0,
        problems: np.ndarray | None = None,
    ) -> Self:
        """Learn from held-out rows.

        Args:
            X: what may tell a hard row from an easy one (rows, features).
            errors: log of truth over prediction.
            holdouts: which rows were held out together; the factor is found across them.
            octaves_outside: how far each row lay outside the range of those learned from.
            neighbor_class: how many neighbours each row had, in a few classes.
            seed: of the model.
            problems: where these are few, which each row is of: then ``X`` says how far opinions
                differ (rows, 1), and the half-width grows with that by a rule, not by a model.
        """
        if problems is not None:
            median_error = max(float(np.median(np.abs(errors))), MIN_ERROR)
            sizes = median_error + X[:, 0]
            factor = conformal_quantile_by_problem(np.abs(errors), problems, sizes)
            return cls(factor, None, factor * float(np.median(sizes)), median_error=median_error)
        size = np.log(np.maximum(np.abs(errors), MIN_ERROR))
        X = _with_octaves(X, octaves_outside)
        names = np.unique(holdouts)
        if len(errors) < MIN_ROWS or len(names) < 2:
            same = conformal_quantile(np.abs(errors))
            return cls(same, None, same)
        modeled = np.empty(len(errors))
        for name in names:
            out = holdouts == name
            modeled[out] = _error_model(seed).fit(X[~out], size[~out]).predict(X[out])
        misses = np.abs(errors) / np.exp(modeled)
        factor = conformal_quantile(misses)
        classes, rows = np.unique(neighbor_class, return_counts=True)
        factors = {
            int(c): conformal_quantile(misses[neighbor_class == c])
            for c in classes[rows >= MIN_CLASS_ROWS]
        }
        median_half_width = factor * float(np.exp(np.median(modeled)))
        return cls(factor, _error_model(seed).fit(X, size), median_half_width, factors)

    def half_width(
        self,
        X: np.ndarray,
        octaves_outside: np.ndarray,
        octaves_beyond: np.ndarray,
        neighbor_class: np.ndarray,
    ) -> np.ndarray:
        """Return the half-width of each row.

        Args:
            X: as in training.
            octaves_outside: how far each row lies outside the training range.
            octaves_beyond: how far it lies outside where no row was held out.
            neighbor_class: as in training.
        """
        if self.median_error is not None:
            half: np.ndarray = self.factor * (self.median_error + X[:, 0])
            unseen = UNSEEN_GROWTH * np.minimum(octaves_beyond, 1.0)
            return half * (1.0 + GROWTH_PER_OCTAVE * octaves_outside + unseen)
        if self.model is None:  # few held-out rows say nothing of distances
            return self.factor * (1.0 + octaves_outside)
        modeled = np.exp(self.model.predict(_with_octaves(X, octaves_outside)))
        factor = np.full(len(X), self.factor)
        for number, class_factor in self.factors.items():
            factor[neighbor_class == number] = class_factor
        return factor * (1.0 + octaves_beyond) * modeled

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``."""
        data = {
            "factor": self.factor,
            "factors": self.factors,
            "typical": self.median_half_width,
            "modelled": self.model is not None,
            "usual": self.median_error,
        }
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
        if self.model is not None:
            self.model.save(folder / f"{name}{BoostingModel.suffix}")

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Read what `save` wrote."""
        data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        model = (
            BoostingModel.load(folder / f"{name}{BoostingModel.suffix}")
            if data["modelled"]
            else None
        )
        factors = {int(number): factor for number, factor in data["factors"].items()}
        return cls(data["factor"], model, data["typical"], factors, data["usual"])


def conformal_quantile(sizes: np.ndarray) -> float:
    """Return what covers `CONFIDENCE` of ``sizes``, with conformal prediction's finite step.

    With too few for the level, the largest one.
    """
    n = len(sizes)
    rank = min(n, int(np.ceil((n + 1) * CONFIDENCE)))
    return float(np.sort(sizes)[rank - 1])


def conformal_quantile_by_problem(
    errors: np.ndarray, problems: np.ndarray, sizes: np.ndarray | None = None
) -> float:
    """Return what ``sizes``, 1 if None, are multiplied with to cover a new problem's errors.

    It covers `CONFIDENCE` of its rows.

    Hierarchical conformal prediction (Lee, Barber and Willett, 2023): every problem weighs the
    same, and the new one, which may be worse than all, as much as another. With too few problems
    for the level, the largest of what covers `CONFIDENCE` of one problem's rows stands for the
    share n / (n + 1), and `TAIL` leads from there to the level, but not beyond `WIDEST`.
    """
    distinct, number, rows = np.unique(problems, return_inverse=True, return_counts=True)
    sizes = np.ones(len(errors)) if sizes is None else sizes
    misses, n = errors / sizes, len(distinct)
    if CONFIDENCE * (n + 1) >= n:
        largest = max(conformal_quantile(misses[problems == problem]) for problem in distinct)
        extrapolated = largest * ((1.0 / (n + 1)) / (1.0 - CONFIDENCE)) ** (1.0 / TAIL_INDEX)
        return max(largest, min(extrapolated, MAX_LOG_HALF_WIDTH / float(np.median(sizes))))
    order = np.argsort(misses)
    weights = np.cumsum(1.0 / ((n + 1) * rows[number[order]]))
    rank = min(int(np.searchsorted(weights, CONFIDENCE - 1e-9)), len(misses) - 1)
    return float(misses[order[rank]])


def _with_octaves(X: np.ndarray, octaves_outside: np.ndarray) -> np.ndarray:
    return np.column_stack([X, octaves_outside]).astype(np.float32)


def _error_model(seed: int) -> BoostingModel:
    return BoostingModel(seed=seed, **ERROR_MODEL_PARAMETERS)

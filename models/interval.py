"""Conformal prediction intervals.

Conformal prediction (Vovk, Gammerman and Shafer, 2005) with normalized residuals (Papadopoulos et
al., ECML 2002): a small model learns the error's size from held-out rows, and a factor makes the
interval cover 90 % of them. Rows with many, few and no neighbors (e.g. on a new device) have
separate factors (Mondrian), so that easy rows do not make up for hard ones. The error model also
sees the distance outside the training range, up to where rows were held out; beyond that, intervals
grow with distance.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from scipy.stats import norm

from foretune.models.trees.boosting import BoostingModel
from foretune.support.files import read_json

CONFIDENCE = 0.9
NEW_DEVICE = -1  # the kind of rows of an unknown device; other kinds count axes with neighbors
MIN_ROWS = 200
MIN_KIND_ROWS = 100
MIN_ERROR = 1e-3  # errors are clipped from below at 0.1 %
BEYOND_GROWTH = 0.3
"""Growth of the half-width per octave beyond the held-out rows; chosen on matrix products with more
rows than in training."""
GROWTH_PER_OCTAVE = 0.05  # growth of the half-width per octave outside the range of few problems
TAIL_INDEX = 2.0  # index of the power law assumed for errors of problems worse than all seen
MAX_LOG_HALF_WIDTH = 1.5  # log of 4.5: wider intervals are used only if errors were as large
UNSEEN_GROWTH = 0.4  # growth of the half-width where no row was held out, e.g. on a new device


@dataclass
class ConformalInterval:
    """Half-widths of 90 % intervals on the log scale.

    ``factor`` multiplies the error that ``model`` predicts (its log; None with few held-out rows)
    to cover 90 % of held-out rows; ``factors`` are those of each kind with enough rows.
    ``median_half_width`` and ``median_error`` (with few problems) are over held-out rows.
    """

    factor: float
    model: BoostingModel | None = None
    median_half_width: float = float("nan")
    factors: dict[int, float] = field(default_factory=dict)
    median_error: float | None = None

    @property
    def caution(self) -> float:
        """Ratio of the median interval's width to the width if held-out errors were normal.

        With few problems, intervals also cover problems that are worse than all seen.
        """
        if self.median_error is None:
            return 1.0
        spread = self.median_error / norm.ppf(0.75)
        return float(self.median_half_width / norm.ppf((1 + CONFIDENCE) / 2) / spread)

    @classmethod
    def fit(
        cls,
        X: np.ndarray,
        errors: np.ndarray,
        holdouts: np.ndarray,
        octaves_outside: np.ndarray,
        kind: np.ndarray,
        seed: int = 0,
        problems: np.ndarray | None = None,
    ) -> Self:
        """Fit to the ``errors`` (log of truth over prediction) of held-out rows.

        ``X`` distinguishes hard rows from easy ones. The factor is found across ``holdouts``, the
        hold-out of each row; ``octaves_outside`` is its distance from that trial's training range,
        and ``kind`` is `NEW_DEVICE` or the number of axes with neighbors on both sides. With few
        problems, ``problems`` is the problem of each row, ``X`` is the disagreement of experts
        (rows, 1), and the half-width grows with it by a rule instead of a model.
        """
        if problems is not None:
            median_error = max(float(np.median(np.abs(errors))), MIN_ERROR)
            sizes = median_error + X[:, 0]
            missed = np.maximum(np.abs(errors), MIN_ERROR)
            factor = conformal_quantile_by_problem(missed, problems, sizes)
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
            modeled[out] = error_model(seed).fit(X[~out], size[~out]).predict(X[out])
        misses = np.abs(errors) / np.exp(modeled)
        factor = conformal_quantile(misses)
        kinds, rows = np.unique(kind, return_counts=True)
        factors = {}
        for c in map(int, kinds[rows >= MIN_KIND_ROWS]):
            of = kind == c
            factors[c] = conformal_quantile(misses[of])
            if c == NEW_DEVICE:  # a new device may be worse than all that were held out
                factors[c] = conformal_quantile_by_problem(
                    np.abs(errors[of]), holdouts[of], np.exp(modeled[of])
                )
        median_half_width = factor * float(np.exp(np.median(modeled)))
        return cls(factor, error_model(seed).fit(X, size), median_half_width, factors)

    def half_width(
        self,
        X: np.ndarray,
        octaves_outside: np.ndarray,
        octaves_beyond: np.ndarray,
        kind: np.ndarray,
    ) -> np.ndarray:
        """Return the half-width of each row; arguments are as in training.

        ``octaves_beyond`` is the distance from where rows were held out.
        """
        if self.median_error is not None:
            half: np.ndarray = self.factor * (self.median_error + X[:, 0])
            unseen = UNSEEN_GROWTH * np.minimum(octaves_beyond, 1.0)
            return half * (1.0 + GROWTH_PER_OCTAVE * octaves_outside + unseen)
        if self.model is None:  # too few held-out rows to learn distances
            return self.factor * (1.0 + octaves_outside)
        modeled = np.exp(self.model.predict(_with_octaves(X, octaves_outside)))
        factor = np.full(len(X), self.factor)
        for number, class_factor in self.factors.items():
            factor[kind == number] = class_factor
        # The factor covers that a device is new; its specs must not widen the interval again.
        beyond = np.where(kind == NEW_DEVICE, np.minimum(octaves_beyond, 1.0), octaves_beyond)
        return factor * (1.0 + BEYOND_GROWTH * beyond) * modeled

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
        """Read from ``folder``."""
        data = read_json(folder / f"{name}.json")
        file = folder / f"{name}{BoostingModel.suffix}"
        model = BoostingModel.load(file) if data["modelled"] else None
        factors = {int(number): factor for number, factor in data["factors"].items()}
        return cls(data["factor"], model, data["typical"], factors, data["usual"])


def conformal_quantile(sizes: np.ndarray) -> float:
    """Return the conformal `CONFIDENCE` quantile of ``sizes``; the maximum if they are too few."""
    n = len(sizes)
    rank = min(n, int(np.ceil((n + 1) * CONFIDENCE)))
    return float(np.sort(sizes)[rank - 1])


def conformal_quantile_by_problem(
    errors: np.ndarray, problems: np.ndarray, sizes: np.ndarray | None = None
) -> float:
    """Return the factor of ``sizes`` (default 1) that covers `CONFIDENCE` of a new problem's rows.

    Hierarchical conformal prediction (Lee, Barber and Willett, 2023): all problems have equal
    weight, and so has the new one, which may be worse than all. With too few problems for the
    level, the largest per-problem quantile stands for level n / (n + 1). The power law `TAIL_INDEX`
    extrapolates from there, up to `MAX_LOG_HALF_WIDTH`.
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


def error_model(seed: int) -> BoostingModel:
    """Return an unfitted model of errors; it suits data that is mostly noise."""
    return BoostingModel(rounds=40, depth=3, rate=0.2, min_child_weight=10.0, rows=0.7, seed=seed)

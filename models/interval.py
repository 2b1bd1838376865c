"""Conformal prediction intervals with normalized residuals (Papadopoulos et al., ECML 2002).

A size is expected for every error, and a factor makes the interval cover 90 % of held-out rows.

- With many problems (`LearnedInterval`), a small model learns the size of errors. Rows with many,
  few and no neighbors (e.g. on a new device) have separate factors (Mondrian), so that easy rows do
  not make up for hard ones. The model also sees the distance outside the training range, up to
  where rows were held out; beyond that, intervals grow with distance. Problems beyond all measured
  ones have the width of the largest that were held out, per octave.
- With few problems (`RuleInterval`), the size is the median error plus the experts' disagreement.
  The factor is between that of a t distribution over problems (`foretune.models.t_width`) and the
  conformal one, and no interval is wider than that of the median of all problems. It grows with
  every octave outside the training range.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from scipy.special import ndtri

from foretune.models.conformal import (
    CONFIDENCE,
    conformal_quantile,
    conformal_quantile_by_problem,
)
from foretune.models.error_model import MIN_ERROR, error_model
from foretune.models.expert_predictions import NEW_DEVICE, ExpertPredictions
from foretune.models.t_width import t_width_by_problem
from foretune.models.trees.boosting import BoostingModel
from foretune.support.files import read_json

MIN_ROWS = 200
"""Minimum held-out rows to learn the size of errors."""
MIN_BEYOND_ROWS = 5
"""Minimum held-out rows beyond all measured problems for a separate width."""
MIN_KIND_ROWS = 100
"""Minimum held-out rows for a kind to have its own factor."""
BEYOND_GROWTH = 0.3
"""Growth of the half-width per octave beyond the held-out rows; chosen on matrix products with more
rows than in training."""
GROWTH_PER_OCTAVE = 0.05
"""Growth of the half-width per octave outside the range of few problems."""
UNSEEN_GROWTH = 0.4
"""Growth of the half-width where no row was held out, e.g. on a new device, with few problems."""


class Interval(Protocol):
    """Half-widths of 90 % intervals on the log scale."""

    @property
    def median_half_width(self) -> float:
        """The median over held-out rows."""

    @property
    def caution(self) -> float:
        """Ratio of the median interval's width to the width if held-out errors were normal."""

    def half_width(
        self,
        predictions: ExpertPredictions,
        octaves_outside: np.ndarray,
        octaves_beyond_reach: np.ndarray,
    ) -> np.ndarray:
        """Return the half-width of each row.

        ``octaves_outside`` is its distance from the training range, ``octaves_beyond_reach`` from
        where rows were held out.
        """

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``."""


@dataclass(frozen=True)
class LearnedInterval:
    """An interval whose width a model learns.

    ``factor`` multiplies the error that ``model`` predicts (its log) to cover 90 % of held-out
    rows; ``factors`` are those of each kind of rows with enough of them. With few held-out rows,
    ``model`` is None, and ``factor`` is the half-width. ``beyond_frontier`` is the half-width of
    rows beyond all measured problems, over one plus their distance in octaves; None if none were
    held out.
    """

    factor: float
    model: BoostingModel | None
    median_half_width: float
    factors: dict[int, float] = field(default_factory=dict)
    beyond_frontier: float | None = None

    @classmethod
    def fit(
        cls,
        predictions: ExpertPredictions,
        errors: np.ndarray,
        *,
        holdouts: np.ndarray,
        octaves_outside: np.ndarray,
        seed: int = 0,
    ) -> Self:
        """Fit to the ``errors`` (log of truth over prediction) of held-out rows.

        ``holdouts`` is the hold-out of each row, ``octaves_outside`` its distance from that
        hold-out's training range.
        """
        absolute_errors = np.abs(errors)
        holdout_numbers = np.unique(holdouts)
        is_beyond_frontier = predictions.is_beyond_frontier
        beyond_frontier = None
        if is_beyond_frontier.sum() >= MIN_BEYOND_ROWS:
            beyond_frontier = conformal_quantile(
                absolute_errors[is_beyond_frontier] / (1.0 + octaves_outside[is_beyond_frontier])
            )
        if len(errors) < MIN_ROWS or len(holdout_numbers) < 2:
            half_width = conformal_quantile(absolute_errors)
            return cls(
                half_width,
                model=None,
                median_half_width=half_width,
                beyond_frontier=beyond_frontier,
            )

        # The size expected of each row's error is learned from the other hold-outs.
        X = _with_octaves(predictions.error_features, octaves_outside)
        log_sizes = np.log(np.maximum(absolute_errors, MIN_ERROR))
        expected_log_sizes = np.empty(len(errors))
        for number in holdout_numbers:
            is_out = holdouts == number
            model = error_model(seed).fit(X[~is_out], log_sizes[~is_out])
            expected_log_sizes[is_out] = model.predict(X[is_out])
        expected_sizes = np.exp(expected_log_sizes)

        # Factors make the intervals cover the errors: one for all rows, and one for each kind of
        # rows with enough of them.
        misses = absolute_errors / expected_sizes
        used = np.ones_like(is_beyond_frontier)
        if beyond_frontier is not None and not is_beyond_frontier.all():
            used = ~is_beyond_frontier
        factor = conformal_quantile(misses[used])
        factors = {}
        row_kinds, rows_per_kind = np.unique(predictions.row_kind, return_counts=True)
        for row_kind in row_kinds[rows_per_kind >= MIN_KIND_ROWS].tolist():
            is_kind = predictions.row_kind == row_kind
            factors[row_kind] = conformal_quantile(misses[is_kind])
            if row_kind == NEW_DEVICE:  # a new device may be worse than all that were held out
                factors[row_kind] = conformal_quantile_by_problem(
                    absolute_errors[is_kind], holdouts[is_kind], expected_sizes[is_kind]
                )
        median_half_width = factor * float(np.exp(np.median(expected_log_sizes)))
        model = error_model(seed).fit(X, log_sizes)
        return cls(factor, model, median_half_width, factors, beyond_frontier)

    @property
    def caution(self) -> float:
        """The width is as errors were."""
        return 1.0

    def half_width(
        self,
        predictions: ExpertPredictions,
        octaves_outside: np.ndarray,
        octaves_beyond_reach: np.ndarray,
    ) -> np.ndarray:
        """Return the half-width of each row; see `Interval.half_width`."""
        inside = self._half_width_inside(predictions, octaves_outside, octaves_beyond_reach)
        if self.beyond_frontier is None:
            return inside
        beyond = self.beyond_frontier * (1.0 + octaves_outside)
        return np.where(predictions.is_beyond_frontier, beyond, inside)

    def _half_width_inside(
        self,
        predictions: ExpertPredictions,
        octaves_outside: np.ndarray,
        octaves_beyond_reach: np.ndarray,
    ) -> np.ndarray:
        """Return the half-width of each row, as if none were beyond all measured problems."""
        if self.model is None:  # too few held-out rows to learn distances
            return self.factor * (1.0 + octaves_outside)

        X = _with_octaves(predictions.error_features, octaves_outside)
        expected_sizes = np.exp(self.model.predict(X))
        factor = np.full(len(X), self.factor)
        for row_kind, kind_factor in self.factors.items():
            factor[predictions.row_kind == row_kind] = kind_factor
        # The factor covers that a device is new; its specs must not widen the interval again.
        counted_octaves = np.where(
            predictions.is_new_device, np.minimum(octaves_beyond_reach, 1.0), octaves_beyond_reach
        )
        return factor * (1.0 + BEYOND_GROWTH * counted_octaves) * expected_sizes

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``."""
        card = {
            "factor": self.factor,
            "factors": self.factors,
            "typical": self.median_half_width,
            "modelled": self.model is not None,
            "usual": None,
        }
        if self.beyond_frontier is not None:
            card["beyond"] = self.beyond_frontier
        _write_card(folder, name, card)
        if self.model is not None:
            self.model.save(folder / _model_file(name))


@dataclass(frozen=True)
class RuleInterval:
    """An interval whose width follows a rule: ``factor`` × (``median_error`` + disagreement).

    Within the training range, it is at most ``widest``.
    """

    factor: float
    median_error: float
    median_half_width: float
    widest: float = np.inf

    @classmethod
    def fit(
        cls,
        disagreement: np.ndarray,
        errors: np.ndarray,
        *,
        problems: np.ndarray,
        widest: float = np.inf,
    ) -> Self:
        """Fit to the ``errors`` (log of truth over prediction) of held-out rows.

        ``disagreement`` is that of the experts, ``problems`` the problem of each row.
        """
        absolute_errors = np.abs(errors)
        median_error = max(float(np.median(absolute_errors)), MIN_ERROR)
        widest = max(widest, MIN_ERROR)
        sizes = median_error + disagreement
        misses = np.maximum(absolute_errors, MIN_ERROR) / sizes
        # The t distribution is too sure where problems are unlike; the largest miss of few is too
        # wide. Their geometric mean covers about nine of ten in both cases.
        by_t_distribution = t_width_by_problem(misses, problems)
        by_largest = conformal_quantile_by_problem(misses * sizes, problems, sizes)
        factor = float(np.sqrt(by_t_distribution * by_largest))
        half_widths = np.minimum(factor * sizes, widest)
        return cls(factor, median_error, float(np.median(half_widths)), widest)

    @property
    def caution(self) -> float:
        """The width also covers problems that are worse than all seen; see `Interval.caution`."""
        normal_spread = self.median_error / ndtri(0.75)
        spread = self.median_half_width / ndtri((1 + CONFIDENCE) / 2)
        return float(spread / normal_spread)

    def half_width(
        self,
        predictions: ExpertPredictions,
        octaves_outside: np.ndarray,
        octaves_beyond_reach: np.ndarray,
    ) -> np.ndarray:
        """Return the half-width of each row; see `Interval.half_width`."""
        inside = self.factor * (self.median_error + predictions.disagreement)
        inside = np.minimum(inside, self.widest)
        unseen = UNSEEN_GROWTH * np.minimum(octaves_beyond_reach, 1.0)
        growth = 1.0 + GROWTH_PER_OCTAVE * octaves_outside + unseen
        return np.asarray(inside * growth)

    def save(self, folder: Path, name: str) -> None:
        """Write to ``folder``."""
        card = {
            "factor": self.factor,
            "factors": {},
            "typical": self.median_half_width,
            "modelled": False,
            "usual": self.median_error,
        }
        if np.isfinite(self.widest):
            card["widest"] = self.widest
        _write_card(folder, name, card)


def load_interval(folder: Path, name: str) -> LearnedInterval | RuleInterval:
    """Read an interval from ``folder``; only that of few problems has a median error."""
    card = read_json(folder / f"{name}.json")
    if card["usual"] is not None:
        widest = card.get("widest", np.inf)
        return RuleInterval(card["factor"], card["usual"], card["typical"], widest)
    model = BoostingModel.load(folder / _model_file(name)) if card["modelled"] else None
    factors = {int(row_kind): factor for row_kind, factor in card["factors"].items()}
    return LearnedInterval(
        card["factor"], model, card["typical"], factors, beyond_frontier=card.get("beyond")
    )


def _with_octaves(error_features: np.ndarray, octaves_outside: np.ndarray) -> np.ndarray:
    return np.column_stack([error_features, octaves_outside]).astype(np.float32)


def _write_card(folder: Path, name: str, card: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")


def _model_file(name: str) -> str:
    return f"{name}{BoostingModel.suffix}"

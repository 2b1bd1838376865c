"""The weights of experts: stacked generalization.

Weights are learned from the experts' errors in held-out rows.

- With few problems, and for rows of new devices, they are fixed and convex (Breiman, "Stacked
  Regressions", Machine Learning 24, 1996): features would only name the few problems or devices
  that were held out. Rows beyond all measured problems have separate fixed weights.
- Other rows get weights of their own: inverse powers of the errors that small models predict. These
  learn the root of the error's size: with its logarithm, an expert that is mostly exact and
  sometimes far off would seem the best.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.error_model import MIN_ERROR, error_model
from foretune.models.expert_predictions import ExpertPredictions
from foretune.models.trees.boosting import BoostingModel
from foretune.support.files import read_json

MIN_ERROR_ROWS = 100
"""Minimum held-out rows to learn errors from."""
MIN_BEYOND_ROWS = 5
"""Minimum held-out rows beyond the measured problems for separate weights."""
MAX_ERROR = 2.0
"""Errors above this log (a factor of seven) count as equally bad."""
POWER = 4.0
"""Weights are the expected error to minus this power."""
PRIOR_ROWS = 2.0
"""Strength of the pull towards equal weights, in rows (with few problems, in problems)."""
WEIGHT_STEPS = 30
"""Steps of iteratively reweighted least squares."""
SUM_WEIGHT = 1e3
"""Weight of the condition that weights sum to one, relative to the data."""
STACK_FILE = "stack.json"


@dataclass
class ConvexStack:
    """Experts with the same weights in every row: not negative, with sum 1.

    ``beyond`` are those of rows beyond all measured problems, if such rows were held out.
    """

    fixed: np.ndarray
    beyond: np.ndarray | None = field(default=None, kw_only=True)

    @classmethod
    def fit(
        cls, predictions: ExpertPredictions, true_value: np.ndarray, row_weight: np.ndarray
    ) -> Self:
        """Fit to the predictions of held-out rows."""
        errors = predictions.values - true_value[:, None]
        fixed = convex_weights(errors, row_weight)
        return cls(
            fixed, beyond=_weights_beyond(errors, predictions.is_beyond_frontier, row_weight)
        )

    def combine(self, predictions: ExpertPredictions) -> np.ndarray:
        """Return the weighted mean of each row."""
        combined = self._combine_inside(predictions)
        if self.beyond is None:
            return combined
        return np.where(predictions.is_beyond_frontier, predictions.values @ self.beyond, combined)

    def _combine_inside(self, predictions: ExpertPredictions) -> np.ndarray:
        """Return the weighted mean of each row, as if none were beyond the measured problems."""
        return np.asarray(predictions.values @ self.fixed)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        self._save(folder, models=[])

    def _save(self, folder: Path, models: list[BoostingModel]) -> None:
        for number, model in enumerate(models):
            model.save(folder / _model_file(number))
        card: dict[str, Any] = {"fixed": self.fixed.tolist(), "models": len(models)}
        if self.beyond is not None:
            card["beyond"] = self.beyond.tolist()
        (folder / STACK_FILE).write_text(json.dumps(card), encoding="utf-8")


@dataclass
class StackByRow(ConvexStack):
    """Experts with weights by row; rows of new devices have the ``fixed`` ones.

    ``models`` predict the root of each expert's error.
    """

    models: list[BoostingModel]

    def _combine_inside(self, predictions: ExpertPredictions) -> np.ndarray:
        """Return the weighted mean of each row, as if none were beyond the measured problems."""
        with_fixed_weights = super()._combine_inside(predictions)
        is_new_device = predictions.is_new_device
        if is_new_device.all():
            return with_fixed_weights

        roots = np.column_stack([m.predict(predictions.error_features) for m in self.models])
        roots = np.maximum(roots, MIN_ERROR**0.5)
        weights = roots ** (-2.0 * POWER)
        with_own_weights = (weights * predictions.values).sum(axis=1) / weights.sum(axis=1)
        return np.where(is_new_device, with_fixed_weights, with_own_weights)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        self._save(folder, self.models)


def fit_stack_by_row(
    predictions: ExpertPredictions, true_value: np.ndarray, seed: int = 0
) -> ConvexStack:
    """Return weights by row, fitted to the predictions of held-out rows.

    They are fixed ones if there is one expert only, or if too few rows of known devices were held
    out.
    """
    errors = predictions.values - true_value[:, None]
    is_new = predictions.is_new_device
    is_known = ~is_new & ~predictions.is_beyond_frontier
    beyond = _weights_beyond(errors, predictions.is_beyond_frontier, np.ones(len(errors)))

    # Weights for rows of new devices, from the devices that were held out.
    enough_new = is_new.sum() >= MIN_ERROR_ROWS or not is_known.any()
    used = is_new if enough_new else is_known
    if not used.any():
        used = predictions.is_beyond_frontier
    fixed = convex_weights(errors[used], row_weight=np.ones(used.sum()))
    if not is_new.any():
        # Weights of known devices may be wrong on a new one: go halfway to equal weights.
        equal_share = 1.0 / len(fixed)
        fixed = (fixed + equal_share) / 2.0

    # Weights for rows of known devices: one model per expert predicts its error in each row.
    n_experts = errors.shape[1]
    if is_known.sum() < MIN_ERROR_ROWS or n_experts == 1:
        return ConvexStack(fixed, beyond=beyond)
    root_errors = np.sqrt(np.clip(np.abs(errors[is_known]), MIN_ERROR, MAX_ERROR))
    error_features = predictions.error_features[is_known]
    models = [error_model(seed).fit(error_features, root) for root in root_errors.T]
    return StackByRow(fixed, models, beyond=beyond)


def load_stack(folder: Path) -> ConvexStack:
    """Read weights from ``folder``."""
    card = read_json(folder / STACK_FILE)
    fixed = np.array(card["fixed"])
    beyond = np.array(card["beyond"]) if "beyond" in card else None
    if card["models"] == 0:
        return ConvexStack(fixed, beyond=beyond)
    models = [BoostingModel.load(folder / _model_file(n)) for n in range(card["models"])]
    return StackByRow(fixed, models, beyond=beyond)


def _weights_beyond(
    errors: np.ndarray, is_beyond_frontier: np.ndarray, row_weight: np.ndarray
) -> np.ndarray | None:
    """Return weights fitted to the rows beyond all measured problems; None if there are too few."""
    if is_beyond_frontier.sum() < MIN_BEYOND_ROWS:
        return None
    return convex_weights(errors[is_beyond_frontier], row_weight[is_beyond_frontier])


def convex_weights(errors: np.ndarray, row_weight: np.ndarray) -> np.ndarray:
    """Return convex weights of the experts (columns) with the least sum of absolute errors.

    Iteratively reweighted least squares: a row counts by the inverse of its error in the step
    before. Each step is a small problem of nonnegative least squares.
    """
    from scipy.optimize import nnls

    n_experts = errors.shape[1]
    weights = np.full(n_experts, 1.0 / n_experts)

    # The pull towards equal weights, in the unit of errors: how far experts typically differ.
    from_mean = errors - errors.mean(axis=1, keepdims=True)
    prior = PRIOR_ROWS * np.median(np.abs(from_mean)) + MIN_ERROR

    for _ in range(WEIGHT_STEPS):
        size = np.maximum(np.abs(errors @ weights), MIN_ERROR)
        gram = (errors * (row_weight / size)[:, None]).T @ errors + prior * np.eye(n_experts)
        # The Cholesky factor of the Gram matrix stands for all rows. One more row, with a large
        # weight, makes the weights sum to one.
        sum_weight = SUM_WEIGHT * np.sqrt(np.trace(gram))
        factor = np.linalg.cholesky(gram).T
        equations = np.vstack([factor, np.full(n_experts, sum_weight)])
        pull = np.linalg.solve(factor.T, np.full(n_experts, prior / n_experts))
        weights = nnls(equations, np.append(pull, sum_weight))[0]
        weights /= weights.sum()
    return weights


def _model_file(number: int) -> str:
    return f"error{number}{BoostingModel.suffix}"

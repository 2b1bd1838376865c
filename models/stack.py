"""Weights of the experts, from held-out rows.

Each expert has a small model of its expected error, learned from rows that were held out of it; the
weights are inverse powers of the expected errors. (Squares would be the best linear combination of
independent, unbiased estimates.) The models learn the root of the error's size: with its logarithm,
an expert that is mostly exact and sometimes far off would seem the best.

Rows of new devices, and of tables with few problems, have convex weights instead (Breiman, "Stacked
Regressions", Machine Learning 24, 1996): there, features would only name the few devices or
problems that were held out.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from foretune.files import read_json
from foretune.models.interval import ERROR_MODEL_PARAMETERS, MIN_ERROR
from foretune.models.trees.boosting import BoostingModel, JointModel

MIN_ROWS = 100
"""Minimum held-out rows to learn errors from."""
MAX_ERROR = 2.0
"""Errors above this log (a factor of seven) count as equally bad."""
POWER = 4.0
"""Power of the inverse expected error."""
PRIOR_ROWS = 2.0
"""Strength of the pull towards equal weights, in rows (with few problems, in problems)."""
STEPS = 30
FILE = "stack.json"


@dataclass
class Stack:
    """How to weigh experts.

    ``fixed`` are convex weights, over rows of new devices if some were held out. ``models`` predict
    the root of each expert's error; there are none with few problems.
    """

    fixed: np.ndarray
    models: list[BoostingModel]

    @classmethod
    def fit(
        cls,
        Z: np.ndarray,
        predictions: np.ndarray,
        truth: np.ndarray,
        new_device: np.ndarray,
        problems: np.ndarray | None = None,
        seed: int = 0,
    ) -> Self:
        """Fit to the predictions of held-out rows (rows, experts), and their true values.

        The features ``Z`` tell where an expert errs. ``new_device`` are the rows whose device was
        held out. With few problems, ``problems`` is the problem of each row; all weigh the same.
        """
        errors, known = predictions - truth[:, None], ~new_device
        if problems is not None:
            row_weight = 1.0 / np.bincount(problems)[problems]
            return cls(_convex_weights(errors, row_weight), [])
        some = new_device if new_device.sum() >= MIN_ROWS or not known.any() else known
        fixed = _convex_weights(errors[some], np.ones(some.sum()))
        if not new_device.any():  # what held on the known devices may be wrong on a new one
            fixed = (fixed + 1.0 / len(fixed)) / 2.0
        if known.sum() < MIN_ROWS or predictions.shape[1] == 1:
            return cls(fixed, [])
        roots = np.sqrt(np.clip(np.abs(errors[known]), MIN_ERROR, MAX_ERROR))
        models = [
            BoostingModel(seed=seed, **ERROR_MODEL_PARAMETERS).fit(Z[known], root)
            for root in roots.T
        ]
        return cls(fixed, models)

    def combine(self, Z: np.ndarray, predictions: np.ndarray, new_device: np.ndarray) -> np.ndarray:
        """Return the weighted mean of each row."""
        value = predictions @ self.fixed
        if self.models and not new_device.all():
            roots = np.maximum(self._joint_model.predict(Z), MIN_ERROR**0.5)
            weights = roots ** (-2.0 * POWER)
            gated = (weights * predictions).sum(axis=1) / weights.sum(axis=1)
            value = np.where(new_device, value, gated)
        return np.asarray(value)

    @cached_property
    def _joint_model(self) -> JointModel:
        return JointModel(self.models)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for i, model in enumerate(self.models):
            model.save(folder / f"error{i}{model.suffix}")
        card = {"fixed": self.fixed.tolist(), "models": len(self.models)}
        (folder / FILE).write_text(json.dumps(card), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read from ``folder``."""
        card = read_json(folder / FILE)
        files = (folder / f"error{i}{BoostingModel.suffix}" for i in range(card["models"]))
        return cls(np.array(card["fixed"]), [BoostingModel.load(file) for file in files])


def _convex_weights(errors: np.ndarray, row_weight: np.ndarray) -> np.ndarray:
    """Return the convex weights of the columns of ``errors`` with the least absolute sum.

    Iteratively reweighted least squares; each step is a small nonnegative problem.
    """
    from scipy.optimize import nnls

    experts = errors.shape[1]
    weights = np.full(experts, 1.0 / experts)
    prior = PRIOR_ROWS * np.median(np.abs(errors - errors.mean(axis=1, keepdims=True))) + MIN_ERROR
    for _ in range(STEPS):
        size = np.maximum(np.abs(errors @ weights), MIN_ERROR)
        gram = (errors * (row_weight / size)[:, None]).T @ errors + prior * np.eye(experts)
        # A heavy last row makes the weights sum to one.
        heavy = 1e3 * np.sqrt(np.trace(gram))
        root = np.vstack([np.linalg.cholesky(gram).T, np.full(experts, heavy)])
        pull = np.linalg.solve(root[:-1].T, np.full(experts, prior / experts))
        weights = nnls(root, np.append(pull, heavy))[0]
        weights /= weights.sum()
    return weights

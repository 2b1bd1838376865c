"""Weighs experts by their expected error.

Weights are inverse powers of expected errors. (Squares would be the best linear combination of
independent, unbiased estimates.) Expected errors are learned from held-out rows, one small model
per expert, as is the power. The models learn the root of the error's size: with its logarithm, an
expert that is mostly exact and sometimes far off would seem the best.

Rows that may be of a new device have a separate power. The few held-out devices must stand for all
future ones, so the smallest power that does about equally well is taken: more experts then
contribute, and less depends on their learned errors. If no device could be held out, new devices
get the smallest power.

With few problems, gating features would only identify the problem. Every expert then has one
expected error, the mean over problems.
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

MAX_ERROR = 2.0
"""Errors above this log (a factor of seven) count as equally bad."""
POWERS = (1.0, 2.0, 3.0, 5.0, 8.0)
FIXED_POWER = 5.0
"""The power with few problems, too few to select one."""


@dataclass
class Blend:
    """How to combine experts.

    Attributes:
        models: per expert, of the root of its error's size; empty with few problems.
        power: power of the inverse error; 0 is the mean.
        new_device_power: the power for rows that may be of a new device.
        typical: with few problems, the log of each expert's expected error.
    """

    models: list[BoostingModel]
    power: float
    new_device_power: float
    typical: np.ndarray | None = None

    @classmethod
    def fit(
        cls,
        Z: np.ndarray,
        predictions: np.ndarray,
        truth: np.ndarray,
        trials: np.ndarray,
        new: np.ndarray,
        seed: int = 0,
    ) -> tuple[Self, np.ndarray]:
        """Fit to held-out rows; also return each trial's values by a blend of the others.

        Args:
            Z: gating features (rows, features).
            predictions: (rows, experts); NaN if an expert has none.
            truth: the true values (rows).
            trials: the hold-out of each row.
            new: rows that may be of a new device.
            seed: random seed.
        """
        names = np.unique(trials)
        values = {power: np.empty(len(truth)) for power in POWERS}
        for name in names:
            out = trials == name if len(names) > 1 else np.ones(len(truth), dtype=bool)
            known = ~out if len(names) > 1 else out
            blend = cls(_error_models(Z[known], predictions[known], truth[known], seed), 0.0, 0.0)
            log_errors = blend.log_errors(Z[out])
            for power in POWERS:
                values[power][out] = _combine(predictions[out], log_errors, power)
        # Geometric mean, so that unpredictable rows do not dominate.
        errors = {s: np.log(np.abs(value - truth) + MIN_ERROR) for s, value in values.items()}
        best = min(errors, key=lambda s: errors[s].mean())
        new_device_power = min(
            best, _smallest_good_power({s: e[new] for s, e in errors.items()}, trials[new])
        )
        value = np.where(new, values[new_device_power], values[best])
        return cls(_error_models(Z, predictions, truth, seed), best, new_device_power), value

    @classmethod
    def fit_by_problem(
        cls, predictions: np.ndarray, truth: np.ndarray, trials: np.ndarray, problems: np.ndarray
    ) -> tuple[Self, np.ndarray]:
        """Fit to held-out rows of few problems; returns the same as `fit`."""
        sizes = np.clip(np.abs(predictions - truth[:, None]), MIN_ERROR, MAX_ERROR)

        def learned(rows: np.ndarray) -> "Blend":
            problem_masks = [rows & (problems == problem) for problem in np.unique(problems[rows])]
            typical = np.mean([np.nanmean(sizes[of], axis=0) for of in problem_masks], axis=0)
            return cls([], FIXED_POWER, FIXED_POWER, np.log(typical))

        value, all_rows = np.empty(len(truth)), np.ones(len(truth), dtype=bool)
        for name in np.unique(trials):
            out = trials == name
            blend = learned(all_rows if out.all() else ~out)
            value[out] = _combine(predictions[out], blend.log_errors(predictions[out]), FIXED_POWER)
        fitted = learned(all_rows)
        return cls([], FIXED_POWER, FIXED_POWER, fitted.typical), value

    def predict(
        self, Z: np.ndarray, predictions: np.ndarray, new: np.ndarray, unseen_device: np.ndarray
    ) -> np.ndarray:
        """Return one value per row; NaN predictions have no weight.

        Args:
            Z: gating features (rows, features).
            predictions: (rows, experts).
            new: rows that may be of a new device.
            unseen_device: rows of a new device, if none was held out.
        """
        power = np.where(new, self.new_device_power, self.power)
        power = np.where(unseen_device, np.minimum(power, POWERS[0]), power)[:, None]
        return _combine(predictions, self.log_errors(Z), power)

    def log_errors(self, Z: np.ndarray) -> np.ndarray:
        """Return the log of each expert's expected error (rows, experts)."""
        if self.typical is not None:
            return np.broadcast_to(self.typical, (len(Z), len(self.typical)))
        roots = self._joint_model.predict(Z)
        return np.asarray(2.0 * np.log(np.maximum(roots, MIN_ERROR**0.5)))

    @cached_property
    def _joint_model(self) -> JointModel:
        return JointModel(self.models)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for i, model in enumerate(self.models):
            model.save(folder / f"blend{i}{model.suffix}")
        typical = None if self.typical is None else self.typical.tolist()
        text = json.dumps([self.power, self.new_device_power, typical])
        (folder / "blend.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, count: int) -> Self:
        """Read a blend of ``count`` experts from ``folder``."""
        power, new_device_power, typical = read_json(folder / "blend.json", list)
        if typical is not None:
            return cls([], float(power), float(new_device_power), np.array(typical))
        files = (folder / f"blend{i}{BoostingModel.suffix}" for i in range(count))
        return cls(
            [BoostingModel.load(file) for file in files], float(power), float(new_device_power)
        )


def _smallest_good_power(errors: dict[float, np.ndarray], trials: np.ndarray) -> float:
    """Return the smallest power within one standard error of the best.

    The rule of Breiman et al. (1984), "Classification and Regression Trees", 3.4.3, applied to
    trial means.
    """
    names, number = np.unique(trials, return_inverse=True)
    if len(names) < 2:
        return max(errors)
    means = {s: np.bincount(number, error) / np.bincount(number) for s, error in errors.items()}
    best = min(means.values(), key=np.mean)
    gaps = {s: mean - best for s, mean in means.items()}
    return min(s for s, gap in gaps.items() if gap.mean() <= gap.std(ddof=1) / len(names) ** 0.5)


def _error_models(
    Z: np.ndarray, predictions: np.ndarray, truth: np.ndarray, seed: int
) -> list[BoostingModel]:
    """Return, per expert, a model of the root of its error's size."""
    models = []
    for prediction in predictions.T:
        known = np.isfinite(prediction)
        if not known.any():  # no predictions: any model will do
            known = np.ones(len(truth), dtype=bool)
        size = np.clip(np.nan_to_num(np.abs(prediction - truth))[known], MIN_ERROR, MAX_ERROR)
        models.append(
            BoostingModel(seed=seed, **ERROR_MODEL_PARAMETERS).fit(Z[known], np.sqrt(size))
        )
    return models


def _combine(
    predictions: np.ndarray, log_errors: np.ndarray, power: float | np.ndarray
) -> np.ndarray:
    there = np.isfinite(predictions)
    log_weights = np.where(there, -power * log_errors, -np.inf)
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    total = (weights * np.where(there, predictions, 0.0)).sum(axis=1)
    return total / weights.sum(axis=1)

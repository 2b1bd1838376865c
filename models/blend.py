"""The blend: several opinions on one value, each weighted by how far off it usually is here.

Weights are inverse powers of expected errors (squares would be the best linear combination of
independent, unbiased estimates), and what is expected is learned from held-out rows: a small model
per opinion, and the power that would have been best. The models learn the root of an error's size:
with its logarithm, an opinion that is mostly exact and sometimes far off would seem the best.

Rows whose device may be new have a power of their own. The few devices that were held out stand for
all that are to come, so among powers that do about equally well on them the gentlest is taken: the
more opinions have a say, the less depends on having learned rightly which of them is off. Where
there were too few devices to hold one out, the gentlest is taken for a new one.

Where problems are few, circumstances would only tell one of them from another: then every opinion
has one expected error, the mean over problems.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from foretune.files import read_json
from foretune.models.interval import ERROR_MODEL_PARAMETERS, MIN_ERROR
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.joint_model import JointModel

MAX_ERROR = 2.0
"""Errors beyond a factor of seven are all equally bad."""
POWERS = (1.0, 2.0, 3.0, 5.0, 8.0)
FIXED_POWER = 5.0
"""The power where problems are few: too few to say which is best."""


@dataclass
class Blend:
    """How to combine opinions.

    Attributes:
        models: per opinion, of the root of its error's size; none where problems are few.
        power: the power of the inverse error that weighs best: 0 for a plain mean.
        new_device_power: the same for rows whose device may be new.
        typical: where problems are few, the log of each opinion's expected error.
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
        """Learn from held-out rows; also return each trial's values by a blend of the others.

        Args:
            Z: the circumstances (rows, features).
            predictions: one column each; NaN for none.
            truth: what was to be predicted (rows).
            trials: which rows were held out together.
            new: which rows' device may be new.
            seed: of the models.
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
        # The geometric mean: rows that nobody can predict must not decide for those that all can.
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
        """Learn from held-out rows of few problems; the values are as `fit` has them.

        Args:
            predictions: as in `fit`, as are the next two.
            truth: what was to be predicted.
            trials: which rows were held out together.
            problems: which problem each row is of.
        """
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
        """Return one value per row; an opinion that is NaN has no weight.

        Args:
            Z: the circumstances (rows, features).
            predictions: one column each.
            new: rows whose device may be new.
            unseen_device: rows of a new device, where none was held out.
        """
        power = np.where(new, self.new_device_power, self.power)
        power = np.where(unseen_device, np.minimum(power, POWERS[0]), power)[:, None]
        return _combine(predictions, self.log_errors(Z), power)

    def log_errors(self, Z: np.ndarray) -> np.ndarray:
        """Return the log of each opinion's expected error (rows, opinions)."""
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
        """Read what `save` wrote for that many opinions."""
        power, new_device_power, typical = read_json(folder / "blend.json", list)
        if typical is not None:
            return cls([], float(power), float(new_device_power), np.array(typical))
        files = (folder / f"blend{i}{BoostingModel.suffix}" for i in range(count))
        return cls(
            [BoostingModel.load(file) for file in files], float(power), float(new_device_power)
        )


def _smallest_good_power(errors: dict[float, np.ndarray], trials: np.ndarray) -> float:
    """Return the smallest power that is within one standard error of the best.

    The rule is that of Breiman et al. (1984), "Classification and Regression Trees", 3.4.3; what
    varies are the trials' means.
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
    """Return a model of the root of the error's size per opinion."""
    models = []
    for prediction in predictions.T:
        known = np.isfinite(prediction)
        if not known.any():  # never speaks: any model will do
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
    result: np.ndarray = total / weights.sum(axis=1)
    return result

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

from foretune.decoding import read_json
from foretune.models.target.spread import GENTLE, SMALLEST
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.together import Together

LARGEST = 2.0
"""Errors beyond a factor of seven are all equally bad."""
SHARPNESSES = (1.0, 2.0, 3.0, 5.0, 8.0)
OF_FEW = 5.0
"""The power where problems are few: too few to say which is best."""


@dataclass
class Blend:
    """How to combine opinions.

    Attributes:
        models: per opinion, of the root of its error's size; none where problems are few.
        sharpness: the power of the inverse error that weighs best: 0 for a plain mean.
        gentle: the same for rows whose device may be new.
        typical: where problems are few, the log of each opinion's expected error.
    """

    models: list[BoostingModel]
    sharpness: float
    gentle: float
    typical: np.ndarray | None = None

    @classmethod
    def fit(
        cls,
        Z: np.ndarray,
        opinions: np.ndarray,
        truth: np.ndarray,
        trials: np.ndarray,
        new: np.ndarray,
        seed: int = 0,
    ) -> tuple[Self, np.ndarray]:
        """Learn from held-out rows; also return each trial's values by a blend of the others.

        Args:
            Z: the circumstances (rows, features).
            opinions: one column each; NaN for none.
            truth: what was to be predicted (rows).
            trials: which rows were held out together.
            new: which rows' device may be new.
            seed: of the models.
        """
        names = np.unique(trials)
        values = {sharpness: np.empty(len(truth)) for sharpness in SHARPNESSES}
        for name in names:
            out = trials == name if len(names) > 1 else np.ones(len(truth), dtype=bool)
            known = ~out if len(names) > 1 else out
            blend = cls(_error_models(Z[known], opinions[known], truth[known], seed), 0.0, 0.0)
            log_errors = blend.log_errors(Z[out])
            for sharpness in SHARPNESSES:
                values[sharpness][out] = _combine(opinions[out], log_errors, sharpness)
        # The geometric mean: rows that nobody can predict must not decide for those that all can.
        errors = {s: np.log(np.abs(value - truth) + SMALLEST) for s, value in values.items()}
        best = min(errors, key=lambda s: errors[s].mean())
        gentle = min(best, _gentlest({s: e[new] for s, e in errors.items()}, trials[new]))
        value = np.where(new, values[gentle], values[best])
        return cls(_error_models(Z, opinions, truth, seed), best, gentle), value

    @classmethod
    def fit_few(
        cls, opinions: np.ndarray, truth: np.ndarray, trials: np.ndarray, problems: np.ndarray
    ) -> tuple[Self, np.ndarray]:
        """Learn from held-out rows of few problems; the values are as `fit` has them.

        Args:
            opinions: as in `fit`, as are the next two.
            truth: what was to be predicted.
            trials: which rows were held out together.
            problems: which problem each row is of.
        """
        sizes = np.clip(np.abs(opinions - truth[:, None]), SMALLEST, LARGEST)

        def learned(rows: np.ndarray) -> "Blend":
            own = [rows & (problems == problem) for problem in np.unique(problems[rows])]
            typical = np.mean([np.nanmean(sizes[of], axis=0) for of in own], axis=0)
            return cls([], OF_FEW, OF_FEW, np.log(typical))

        value, every = np.empty(len(truth)), np.ones(len(truth), dtype=bool)
        for name in np.unique(trials):
            out = trials == name
            blend = learned(every if out.all() else ~out)
            value[out] = _combine(opinions[out], blend.log_errors(opinions[out]), OF_FEW)
        whole = learned(every)
        return cls([], OF_FEW, OF_FEW, whole.typical), value

    def predict(
        self, Z: np.ndarray, opinions: np.ndarray, new: np.ndarray, unheard: np.ndarray
    ) -> np.ndarray:
        """Return one value per row; an opinion that is NaN has no weight.

        Args:
            Z: the circumstances (rows, features).
            opinions: one column each.
            new: rows whose device may be new.
            unheard: rows of a new device, where none was held out.
        """
        sharpness = np.where(new, self.gentle, self.sharpness)
        sharpness = np.where(unheard, np.minimum(sharpness, SHARPNESSES[0]), sharpness)[:, None]
        return _combine(opinions, self.log_errors(Z), sharpness)

    def log_errors(self, Z: np.ndarray) -> np.ndarray:
        """Return the log of each opinion's expected error (rows, opinions)."""
        if self.typical is not None:
            return np.broadcast_to(self.typical, (len(Z), len(self.typical)))
        roots = self._together.predict(Z)
        return np.asarray(2.0 * np.log(np.maximum(roots, SMALLEST**0.5)))

    @cached_property
    def _together(self) -> Together:
        return Together(self.models)

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for i, model in enumerate(self.models):
            model.save(folder / f"blend{i}{model.suffix}")
        typical = None if self.typical is None else self.typical.tolist()
        said = json.dumps([self.sharpness, self.gentle, typical])
        (folder / "blend.json").write_text(said, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, opinions: int) -> Self:
        """Read what `save` wrote for that many opinions."""
        sharpness, gentle, typical = read_json(folder / "blend.json", list)
        if typical is not None:
            return cls([], float(sharpness), float(gentle), np.array(typical))
        files = (folder / f"blend{i}{BoostingModel.suffix}" for i in range(opinions))
        return cls([BoostingModel.load(file) for file in files], float(sharpness), float(gentle))


def _gentlest(errors: dict[float, np.ndarray], trials: np.ndarray) -> float:
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
    Z: np.ndarray, opinions: np.ndarray, truth: np.ndarray, seed: int
) -> list[BoostingModel]:
    """Return a model of the root of the error's size per opinion."""
    models = []
    for opinion in opinions.T:
        known = np.isfinite(opinion)
        if not known.any():  # never speaks: any model will do
            known = np.ones(len(truth), dtype=bool)
        size = np.clip(np.nan_to_num(np.abs(opinion - truth))[known], SMALLEST, LARGEST)
        models.append(BoostingModel(seed=seed, **GENTLE).fit(Z[known], np.sqrt(size)))
    return models


def _combine(
    opinions: np.ndarray, log_errors: np.ndarray, sharpness: float | np.ndarray
) -> np.ndarray:
    there = np.isfinite(opinions)
    log_weights = np.where(there, -sharpness * log_errors, -np.inf)
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    total = (weights * np.where(there, opinions, 0.0)).sum(axis=1)
    result: np.ndarray = total / weights.sum(axis=1)
    return result

"""The blend: several opinions on one value, each weighted by how far off it usually is here.

Weights are inverse squares of expected errors (the best linear combination of independent, unbiased
estimates), and what is expected is learned from held-out rows: a small model per opinion.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.models.boosting import BoostingModel
from foretune.models.spread import SMALLEST

LEAST_ROWS = 60
"""With fewer held-out rows an opinion's error is the same everywhere: its median."""
_GENTLE: dict[str, Any] = {"rounds": 80, "depth": 3, "rate": 0.1, "least_weight": 10.0, "rows": 0.7}


@dataclass
class Blend:
    """How to combine opinions.

    Attributes:
        models: per opinion, of the log of its error's size.
        sharpness: the power of the inverse error that weighs best: 0 for a plain mean.
    """

    models: list[BoostingModel]
    sharpness: float

    @classmethod
    def fit(cls, Z: np.ndarray, opinions: np.ndarray, truth: np.ndarray, seed: int = 0) -> Self:
        """Learn from held-out rows.

        Args:
            Z: the circumstances (rows, features).
            opinions: one column each; NaN for none.
            truth: what was to be predicted (rows).
            seed: of the models.
        """
        models = []
        for opinion in opinions.T:
            known = np.isfinite(opinion)
            size = np.log(np.maximum(np.abs(opinion - truth)[known], SMALLEST))
            models.append(BoostingModel(seed=seed, **_GENTLE).fit(Z[known], size))
        return cls(models, 3.0)

    def predict(self, Z: np.ndarray, opinions: np.ndarray) -> np.ndarray:
        """Return one value per row; an opinion that is NaN has no weight."""
        log_errors = np.column_stack([model.predict(Z) for model in self.models])
        log_weights = np.where(np.isfinite(opinions), -self.sharpness * log_errors, -np.inf)
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        total = (weights * np.nan_to_num(opinions)).sum(axis=1)
        result: np.ndarray = total / weights.sum(axis=1)
        return result

    @classmethod
    def out_of_trial(
        cls, Z: np.ndarray, opinions: np.ndarray, truth: np.ndarray, trial: np.ndarray, seed: int
    ) -> np.ndarray:
        """Return the blend of every trial's rows by a blend that learned from the others."""
        result = np.empty(len(truth))
        for number in np.unique(trial):
            out = trial == number
            blend = cls.fit(Z[~out], opinions[~out], truth[~out], seed)
            result[out] = blend.predict(Z[out], opinions[out])
        return result

    def save(self, folder: Path) -> None:
        """Write to ``folder``."""
        for i, model in enumerate(self.models):
            model.save(folder / f"blend{i}{model.suffix}")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote."""
        files = sorted(folder.glob(f"blend*{BoostingModel.suffix}"))
        return cls([BoostingModel.load(file) for file in files], 3.0)

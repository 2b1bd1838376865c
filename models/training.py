"""Training: fit a predictor and say how good it is on what it has not seen."""

from dataclasses import dataclass

import pandas as pd

from foretune.kernel import Kernel
from foretune.models.evaluation import Scores, cross_validate
from foretune.models.predictor import Predictor
from foretune.models.splits import Group
from foretune.models.targets import Target


@dataclass(frozen=True)
class Training:
    """A fitted predictor and its scores.

    Attributes:
        predictor: fitted on all rows.
        scores: target -> split -> model or baseline -> metric, all on held-out rows.
    """

    predictor: Predictor
    scores: dict[str, Scores]

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return target -> split -> metric of the predictor's own model."""
        return {
            target: {split: models[self.predictor.model] for split, models in splits.items()}
            for target, splits in self.scores.items()
        }


def train_predictor(
    runs: pd.DataFrame,
    model: str = "xgboost",
    targets: tuple[Target, ...] | None = None,
    group: Group = "problem",
    seed: int = 0,
    kernel: Kernel | None = None,
) -> Training:
    """Fit a predictor on ``runs`` and cross-validate it on rows and on whole groups held out.

    Raises:
        RunTableError, PredictorError: see `Predictor.fit`.
    """
    predictor = Predictor(model, targets, seed, kernel).fit(runs)
    scores = {str(t): cross_validate(predictor, runs, t, group) for t in predictor.targets_}
    return Training(predictor, scores)

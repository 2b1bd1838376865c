"""Fits a predictor and validates it on held-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from foretune.family import Family
from foretune.models.predictor import Predictor
from foretune.models.targets import Target
from foretune.models.validation.evaluation import (
    Scores,
    Validation,
    ValidationLevel,
    cross_validate,
)
from foretune.models.validation.splits import Split


@dataclass(frozen=True)
class Training:
    """A fitted predictor and its scores.

    ``predictor`` was fitted on all rows; ``validation`` has scores on held-out rows, and those
    rows.
    """

    predictor: Predictor
    validation: Validation

    @property
    def scores(self) -> dict[str, Scores]:
        """Target -> split -> model or baseline -> metric."""
        return self.validation.scores

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return target -> split -> metric of the predictor's model."""
        return {
            target: {split: models[self.predictor.model] for split, models in splits.items()}
            for target, splits in self.scores.items()
        }


def train_predictor(
    runs: pd.DataFrame,
    model: str = "xgboost",
    targets: tuple[Target, ...] | None = None,
    group: str = "problem",
    seed: int = 0,
    kernel: Family | None = None,
    splits: Sequence[Split] | None = None,
    extra_columns: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    validate: ValidationLevel = "quick",
) -> Training:
    """Fit a predictor and validate it on held-out rows.

    Args:
        runs: a run table of one kernel.
        model: name of a registered model; see `Predictor`, also for the following.
        targets: the targets to learn.
        group: what the grouped split holds out together (see
            `foretune.models.validation.splits.group_columns`).
        seed: random seed.
        kernel: cost model and derived features.
        splits: validation splits; None: see `cross_validate`.
        extra_columns: column groups to learn from too.
        parameters: model parameters.
        validate: ``quick`` holds out one fold, for one more fit; ``full`` every fold of every
            split; ``none`` nothing.

    Raises:
        RunTableError, PredictorError: see `Predictor.fit`.
        UnknownName: there is no such validation level.
    """
    predictor = Predictor(model, targets, seed, kernel, extra_columns, parameters).fit(runs)
    return Training(predictor, cross_validate(predictor, predictor.runs_, group, splits, validate))

"""Trains a predictor, and validates it on held-out rows next to baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from foretune.datasets.plain_tables import plain_runs
from foretune.family import Family
from foretune.models.predictor import WEAKNESS, Predictor
from foretune.models.splits import Split
from foretune.models.targets import Target
from foretune.models.validation.cross_validation import (
    Scores,
    Validation,
    ValidationLevel,
    cross_validate,
)
from foretune.result import Result, plain


@dataclass(frozen=True, eq=False, repr=False)
class Training(Result):
    """A fitted predictor and its scores.

    ``predictor`` was fitted on all rows; ``validation`` has held-out rows and their scores.
    """

    predictor: Predictor = field(compare=False)
    validation: Validation

    @property
    def headline(self) -> str:
        """Error on held-out problems, else on held-out rows."""
        errors = [
            (split, target, metrics["median_ape"])
            for target, metrics_of_split in self.metrics().items()
            for split, metrics in metrics_of_split.items()
        ]
        if not errors:
            return str(self.validation)
        problems_first = sorted(errors, key=lambda entry: entry[0] != "grouped")
        split, target, error = problems_first[0]
        return f"{target}: median error {error:.1%} ({split})"

    def to_dict(self) -> dict[str, Any]:
        """Return the scores, see `scores`."""
        return {"level": self.validation.level, "scores": plain(self.scores)}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per target, split, and model or baseline, with its metrics."""
        rows = [
            {"target": target, "held out": split, "model": model, **metrics}
            for target, splits in self.scores.items()
            for split, models in splits.items()
            for model, metrics in models.items()
        ]
        return pd.DataFrame(rows)

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
    sizes: Sequence[str] = (),
) -> Training:
    """Fit a predictor and validate it on held-out rows.

    Args:
        runs: a run table of one kernel, or any table with a column ``time_ms``.
        model: name of a registered model; see `Predictor`, also for the following.
        targets: the targets to learn.
        group: what the grouped split holds out together (see
            `foretune.models.splits.group_columns`).
        seed: random seed.
        kernel: cost model and derived features.
        splits: validation splits; None: see `cross_validate`.
        extra_columns: column groups to learn from too.
        parameters: model parameters.
        validate: ``quick`` holds out one fold, for one more fit; ``full`` every fold of every
            split; ``none`` nothing.
        sizes: the problem columns of a table that is not a run table; the others are the
            configuration. If empty, all columns are the problem.

    Raises RunTableError, PredictorError (see `Predictor.fit`); UnknownName if no such level exists.
    """
    is_run_table = bool({"kernel", "device", "status"} & set(runs.columns))
    if sizes or not is_run_table:
        runs = plain_runs(runs, sizes)
    predictor = Predictor(
        model=model,
        targets=targets,
        seed=seed,
        kernel=kernel,
        extra_columns=extra_columns,
        parameters=parameters,
    ).fit(runs)
    validation = cross_validate(predictor, predictor.runs_, group, splits=splits, level=validate)
    # Whoever uses the predictor later must know, too.
    if validation.weakness:
        predictor.training_[WEAKNESS] = validation.weakness
    return Training(predictor, validation)

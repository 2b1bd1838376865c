"""Trains a predictor, and validates it on held-out rows next to baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from foretune.datasets.plain_tables import plain_runs
from foretune.datasets.schema import PLAIN_GROUPS
from foretune.family import Family
from foretune.features.reading_templates import ANY_READING
from foretune.models.predictor import WEAKNESS, Predictor
from foretune.models.splits import Split
from foretune.models.target_names import Target
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
        """Error of the first target on held-out groups, by default problems; else on other rows.

        Without scores, why there are none.
        """
        errors = {
            (split, target): metrics["median_ape"]
            for target, metrics_of_split in self.metrics().items()
            for split, metrics in metrics_of_split.items()
        }
        if not errors:
            return str(self.validation)
        grouped = [key for key in errors if key[0] == "grouped"]
        split, target = next(iter(grouped or errors))
        return f"{target}: median error {errors[split, target]:.1%} ({split})"

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
        """Target -> split -> model or baseline -> metric -> value."""
        return self.validation.scores

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return target -> split -> metric -> value: the `scores` without baselines."""
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
    read_as: str = ANY_READING,
) -> Training:
    """Fit a predictor and validate it on held-out rows.

    Args:
        runs: a run table of one kernel, or any table with a column ``time_ms``.
        model: name of a registered model; see `Predictor`, also for the following.
        targets: the targets to learn.
        group: what the grouped split holds out together (see
            `foretune.models.splits.group_columns`).
        seed: random seed.
        kernel: the `Family` of the kernel, which says what work its sizes are; see `Predictor`.
        splits: validation splits; None: see `cross_validate`.
        extra_columns: column groups to learn from too.
        parameters: model parameters.
        validate: ``quick`` holds out one fold, for one more fit; ``full`` every fold of every
            split; ``none`` nothing.
        sizes: the problem columns of a table that is not a run table; the others are the
            configuration. If empty, all columns are the problem. A run table names its columns
            ``problem.…`` and ``config.…``.
        read_as: what an unknown kernel is; see `Predictor`.

    Raises RunTableError, PredictorError (see `Predictor.fit`); UnknownName if no such level exists.
    """
    if sizes or not _is_run_table(runs):
        runs = plain_runs(runs, sizes)
    predictor = Predictor(
        model=model,
        targets=targets,
        seed=seed,
        kernel=kernel,
        extra_columns=extra_columns,
        parameters=parameters,
        read_as=read_as,
    ).fit(runs)
    validation = cross_validate(predictor, predictor.runs_, group, splits=splits, level=validate)
    # Whoever uses the predictor later must know, too.
    if validation.weakness:
        predictor.training_[WEAKNESS] = validation.weakness
    return Training(predictor, validation)


def _is_run_table(table: pd.DataFrame) -> bool:
    """Return whether a table names its columns, and says what was measured, as run tables do.

    Any table may have a column ``kernel``, ``device`` or ``status``.
    """
    has_groups = any(str(column).startswith(PLAIN_GROUPS) for column in table.columns)
    return has_groups and not set(table.columns).isdisjoint(("kernel", "device", "status"))

"""Cross-validation of predictors: how far off on rows that they did not see?

Every fold fits a new predictor on the measurements of the other folds, intervals included, and is
scored next to baselines (`foretune.models.validation.baselines`).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import pandas as pd
from sklearn.base import clone

from foretune.datasets.runs import newest_runs, problems_of, tasks_of
from foretune.datasets.schema import validate
from foretune.errors import DataWarning, PredictorError, require_known
from foretune.models.predictor import Predictor
from foretune.models.repeats import matching_rows
from foretune.models.splits import DEFAULT_SPLITS, Split, fold_of_rows
from foretune.models.target_names import MIN_ROWS, TARGETS, Target
from foretune.models.targets import measured_rows
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.energy_choice import EnergyChoice, predict_energy
from foretune.models.validation.metrics import score
from foretune.models.validation.weakness import weakness_of

Scores = dict[str, dict[str, dict[str, float]]]
"""Split -> model or baseline -> metric -> value."""
ValidationLevel = Literal["none", "quick", "full"]
"""None; one fold of one split, for one additional fit; every fold of all splits."""
VALIDATION_LEVELS: tuple[ValidationLevel, ...] = get_args(ValidationLevel)
QUICK_SPLITS: tuple[Split, ...] = ("grouped", "random")
"""Quick validation uses the first split that is possible for the runs."""
MANY_ROWS = 10_000
"""Larger tables test one fold of five: enough rows, a fifth of the time."""
BASELINE_PREFIX = "baseline "
"""Prefix of the columns with predictions of baselines."""


@dataclass(frozen=True)
class _Predicted:
    """Predictions of held-out rows: by target, and of energy if both targets are predicted."""

    of_targets: dict[Target, pd.DataFrame]
    energy: pd.DataFrame | None


@dataclass
class Validation:
    """Results of cross-validation, per target.

    Attributes:
        scores: split -> model or baseline -> metric.
        held_out: the grouped split's rows: ``problem, truth, prediction, low, high``.
        energy_choice: what the choice of the least energy costs, if power is predicted, too: on
            the rows of the grouped split, or of the first one.
        seen_problem_share: share of the random split's test rows whose problem is in training too.
        level: level of validation.
        folds: number of parts of which the last split held out one, or each in turn.
        one_fold: whether it held out one.
    """

    scores: dict[str, Scores] = field(default_factory=dict)
    held_out: dict[str, pd.DataFrame] = field(default_factory=dict)
    energy_choice: EnergyChoice | None = None
    seen_problem_share: dict[str, float] = field(default_factory=dict)
    level: ValidationLevel = "full"
    folds: int = 0
    one_fold: bool = False

    def __str__(self) -> str:
        """Return how the scores were obtained, in one line."""
        if self.level == "none":
            return "not validated: its error is unknown"
        if not any(self.scores.values()):
            return "not validated: nothing could be held out, so its error is unknown"
        share = {1: "the latest fifth", 2: "a half", 3: "a third", 4: "a quarter"}
        once = f"{share.get(self.folds, 'a fifth')} held out once"
        if self.level == "quick":
            return f"quick validation: {once}; --validate full holds out more"
        if self.one_fold:
            return f"full validation: {once} in every way, as there are over {MANY_ROWS:,} rows"
        return "full validation: every row held out in turn"

    def add(self, split: Split, predicted: _Predicted, model: str) -> None:
        """Add what was predicted of the held-out rows of a split."""
        for target, table in predicted.of_targets.items():
            self.scores[target][split] = _scores(table, model)
            if split == "random":
                self.seen_problem_share[target] = float(table["seen_problem"].mean())
            if split == "grouped":
                columns = ["problem", "truth", "prediction", "low", "high"]
                self.held_out[target] = table[columns]
        if predicted.energy is not None and (split == "grouped" or self.energy_choice is None):
            self.energy_choice = EnergyChoice.from_table(predicted.energy)

    @property
    def weakness(self) -> str:
        """Sentences on targets whose predictor is not worth having, see `weakness_of`; or empty."""
        sentences = [
            weakness_of(target, scores.get("grouped", {})) for target, scores in self.scores.items()
        ]
        return " ".join(filter(None, sentences))


@dataclass(frozen=True)
class _Measurements:
    """All measurements, and which run each belongs to.

    ``runs`` has one row per run, its newest measurement; ``run_of_measurement`` is its number for
    every row of ``measurements``.
    """

    measurements: pd.DataFrame
    runs: pd.DataFrame
    run_of_measurement: np.ndarray

    @classmethod
    def from_table(cls, table: pd.DataFrame) -> "_Measurements":
        measurements = validate(table).reset_index(drop=True)
        newest = newest_runs(measurements).reset_index(drop=True)
        # Runs that are equal as text are one.
        distinct, run_of_measurement = np.unique(
            matching_rows(newest, measurements), return_inverse=True
        )
        runs = newest.iloc[distinct].reset_index(drop=True)
        return cls(measurements, runs, run_of_measurement)


def cross_validate(
    predictor: Predictor,
    runs: pd.DataFrame,
    group: str = "problem",
    splits: Sequence[Split] | None = None,
    level: ValidationLevel = "full",
) -> Validation:
    """Return the scores of predictors like ``predictor`` on held-out rows.

    Every fold fits a new predictor, intervals included, on all measurements of the other folds.
    ``predictor`` must be fitted and is not changed. Splits that are impossible for the runs are
    left out. Raises UnknownName if there is no such level. ``group`` is what the grouped split
    holds out together. Without ``splits``, all but ``time`` are used; ``quick`` uses the first
    possible one, preferably by problem.
    """
    require_known("validation level", level, VALIDATION_LEVELS)
    validation = Validation({target: {} for target in predictor.targets_}, level=level)
    if level == "none":
        return validation

    measured = _Measurements.from_table(runs)
    one_fold = level == "quick" or len(measured.runs) > MANY_ROWS
    first_split_only = splits is None and level == "quick"
    if splits is None:
        splits = QUICK_SPLITS if first_split_only else DEFAULT_SPLITS

    for split in splits:
        folds = fold_of_rows(measured.runs, split, predictor.seed, group)
        if folds is None:
            continue
        predicted = _predict_folds(predictor, measured, folds, one_fold=one_fold)
        validation.add(split, predicted, predictor.model)
        if predicted.of_targets:
            validation.folds = int(folds.max()) + 1
            validation.one_fold = one_fold
        if first_split_only and any(validation.scores.values()):
            break
    return validation


def _predict_folds(
    predictor: Predictor, measured: _Measurements, folds: np.ndarray, *, one_fold: bool
) -> _Predicted:
    """Return the predictions of the folds, or of the first one that can be predicted.

    ``folds`` is the fold of each run.
    """
    fold_of_measurement = folds[measured.run_of_measurement]
    tables: dict[Target, list[pd.DataFrame]] = {}
    energies: list[pd.DataFrame] = []
    for fold in np.unique(folds[folds >= 0]):
        training_runs = measured.runs[folds != fold]
        test_runs = measured.runs[folds == fold]
        known = {target: measured_rows(target, training_runs) for target in predictor.targets_}
        test = {target: measured_rows(target, test_runs) for target in predictor.targets_}
        targets = tuple(t for t in known if len(known[t]) >= MIN_ROWS and len(test[t]))
        if not targets:
            continue

        fold_predictor: Predictor = clone(predictor).set_params(targets=targets)
        try:
            with warnings.catch_warnings(action="ignore", category=DataWarning):
                fold_predictor.fit(measured.measurements[fold_of_measurement != fold])
            for target in targets:
                table = _predict_fold(fold_predictor, known[target], test[target], target)
                tables.setdefault(target, []).append(table)
            if set(targets) == set(TARGETS):
                energies.append(predict_energy(fold_predictor, test_runs))
        except PredictorError:  # the fold cannot be fitted or predicted
            continue
        if one_fold:
            break
    of_targets = {target: pd.concat(parts, ignore_index=True) for target, parts in tables.items()}
    energy = pd.concat(energies, ignore_index=True) if energies else None
    return _Predicted(of_targets, energy)


def _predict_fold(
    fold_predictor: Predictor, known: pd.DataFrame, test: pd.DataFrame, target: Target
) -> pd.DataFrame:
    """Return the test rows with the predictions of the predictor and of all baselines."""
    predicted = fold_predictor.predict(test)
    problems = problems_of(test)
    problem_names = list(map(str, problems))
    known_problems = set(problems_of(known))
    table = pd.DataFrame(
        {
            "problem": problem_names,
            "truth": test[target].to_numpy(dtype=float),
            "prediction": predicted[target].to_numpy(),
            "low": predicted[f"{target}_low"].to_numpy(),
            "high": predicted[f"{target}_high"].to_numpy(),
            "task": tasks_of(test),
            "seen_problem": [problem in known_problems for problem in problems],
        }
    )
    baselines = predict_baselines(target, fold_predictor.features_.family, known, test)
    return table.assign(
        **{f"{BASELINE_PREFIX}{name}": values for name, values in baselines.items()}
    )


def _scores(table: pd.DataFrame, model: str) -> dict[str, dict[str, float]]:
    """Return the scores of the model, then of the baselines that predict every row."""
    truth = table["truth"].to_numpy()
    groups = pd.factorize(table["task"])[0]
    interval = (table["low"].to_numpy(), table["high"].to_numpy())
    scores = {model: score(truth, table["prediction"].to_numpy(), groups, interval)}
    for column in table.columns[table.columns.str.startswith(BASELINE_PREFIX)]:
        values = table[column].to_numpy(dtype=float)
        if np.isfinite(values).all():
            scores[column.removeprefix(BASELINE_PREFIX)] = score(truth, values, groups)
    return scores

"""Fits a predictor, and validates it on held-out rows next to baselines."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from sklearn.base import clone

from foretune.datasets.plain_tables import plain_runs
from foretune.datasets.runs import newest_runs, problems_of
from foretune.datasets.schema import validate
from foretune.errors import DataWarning, PredictorError, require_known
from foretune.family import Family
from foretune.models.data_checks import drop_implausible
from foretune.models.predictor import Predictor
from foretune.models.repeats import NO_MATCH, matching_rows
from foretune.models.splits import DEFAULT_SPLITS, Split, fold_of_rows, task_numbers
from foretune.models.targets import MIN_ROWS, Target, measured_rows
from foretune.models.validation.baselines import predict_baselines
from foretune.models.validation.metrics import score
from foretune.result import Result, plain

Scores = dict[str, dict[str, dict[str, float]]]  # split -> model or baseline -> metric -> value
SIMULATED = "simulated.cycles"  # column of a simulator's cycles
MANY_ROWS = 10_000  # larger tables test one fold of five: enough rows, a fifth of the time
ValidationLevel = Literal["none", "quick", "full"]
"""None; one fold of one split, for one additional fit; every fold of all splits."""
VALIDATION_LEVELS: tuple[ValidationLevel, ...] = get_args(ValidationLevel)
QUICK_SPLITS: tuple[Split, ...] = ("grouped", "random")
"""Quick validation uses the first split that is possible for the runs."""
CURVE_SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Shares of the rows at the points of a learning curve."""


@dataclass
class Validation:
    """Results of cross-validation, per target.

    ``scores``: split -> model or baseline -> metric. ``held_out``: the grouped split's rows, with
    columns ``problem, truth, prediction, low, high``. ``seen_problem_share``: the share of the
    random split's test rows whose problem is in training too. ``folds`` is the number of parts of
    which the last split held out one, or each in turn; ``one_fold`` tells which.
    """

    scores: dict[str, Scores] = field(default_factory=dict)
    held_out: dict[str, pd.DataFrame] = field(default_factory=dict)
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

    @property
    def weakness(self) -> str:
        """A sentence if a baseline predicts held-out problems as well as the model; else empty."""
        scores = next(iter(self.scores.values()), {}).get("grouped", {})
        own, *others = [s.get("median_ape", math.nan) for s in scores.values()] or [math.nan]
        if not others or own < min(others):
            return ""
        best = list(scores)[1 + int(np.argmin(others))]
        return (
            f"The predictor is no better than {best} on held-out problems: median error "
            f"{100 * own:.1f} % against {100 * min(others):.1f} %. Train it on more problems."
        )


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
    all_runs = validate(runs).reset_index(drop=True)
    runs = newest_runs(all_runs).reset_index(drop=True)
    kept, newest = np.unique(matching_rows(runs, all_runs), return_inverse=True)
    runs = runs.iloc[kept].reset_index(drop=True)
    first_only = splits is None and level == "quick"
    for split in splits or (QUICK_SPLITS if first_only else DEFAULT_SPLITS):
        folds = fold_of_rows(runs, split, predictor.seed, group)
        if folds is None:
            continue
        one_fold = level == "quick" or len(runs) > MANY_ROWS
        for target, table in _predict_folds(
            predictor, runs, folds, all_runs, folds[newest], one_fold
        ).items():
            validation.scores[target][split] = _scores(table, predictor.model)
            validation.folds, validation.one_fold = int(folds.max()) + 1, one_fold
            if split == "random":
                validation.seen_problem_share[target] = float(table["twin"].mean())
            if split == "grouped":
                columns = ["problem", "truth", "prediction", "low", "high"]
                validation.held_out[target] = table[columns]
        if first_only and any(validation.scores.values()):
            break
    return validation


def evaluate_predictor(predictor: Predictor, runs: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the scores of a fitted predictor on new runs, by target.

    Raises PredictorError if the runs are of another kernel, none succeeded, or times are
    implausible.
    """
    runs = validate(runs).reset_index(drop=True)
    predictor.require_same_kernel(runs)
    runs = newest_runs(drop_implausible(predictor.features_.family, runs))
    scores = {}
    for target in predictor.targets_:
        rows = measured_rows(target, runs)
        if rows.empty:
            continue
        predicted = predictor.predict(rows)
        value = predicted[target].to_numpy()
        bounds = predicted[f"{target}_low"].to_numpy(), predicted[f"{target}_high"].to_numpy()
        scores[str(target)] = score(rows[target].to_numpy(float), value, task_numbers(rows), bounds)
    if not scores:
        raise PredictorError(f"none of the runs succeeded with {', '.join(predictor.targets_)}")
    return scores


def score_simulator(runs: pd.DataFrame) -> dict[str, float]:
    """Return the scores of ``simulated.cycles`` as times at one clock; empty without that column.

    The clock is the median of cycles over time on these runs, which favors the simulator.
    """
    if SIMULATED not in runs:
        return {}
    rows = measured_rows("time_ms", newest_runs(validate(runs)))
    rows = rows[rows[SIMULATED].to_numpy(float) > 0]
    if rows.empty:
        return {}
    truth, cycles = rows["time_ms"].to_numpy(float), rows[SIMULATED].to_numpy(float)
    predicted = cycles * np.exp(np.median(np.log(truth / cycles)))
    return score(truth, predicted, task_numbers(rows))


def count_seen_before(predictor: Predictor, runs: pd.DataFrame) -> int:
    """Return how many of ``runs`` have the same run in training."""
    return int((matching_rows(predictor.measured_runs(), runs) != NO_MATCH).sum())


def _predict_folds(
    predictor: Predictor,
    runs: pd.DataFrame,
    folds: np.ndarray,
    all_runs: pd.DataFrame,
    folds_of_all_runs: np.ndarray,
    one_fold: bool,
) -> dict[Target, pd.DataFrame]:
    """Return the predictions of the folds of ``runs``, or of one fold.

    ``all_runs`` includes older measurements.
    """
    tables: dict[Target, list[pd.DataFrame]] = {}
    for fold in np.unique(folds[folds >= 0]):
        rest, held_out = runs[folds != fold], runs[folds == fold]
        known = {target: measured_rows(target, rest) for target in predictor.targets_}
        test = {target: measured_rows(target, held_out) for target in predictor.targets_}
        targets = tuple(t for t in known if len(known[t]) >= MIN_ROWS and len(test[t]))
        if not targets:
            continue
        fold_predictor: Predictor = clone(predictor).set_params(targets=targets)
        try:
            with warnings.catch_warnings(action="ignore", category=DataWarning):
                fold_predictor.fit(all_runs[folds_of_all_runs != fold])
            for target in targets:
                table = _predict_fold(fold_predictor, known[target], test[target], target)
                tables.setdefault(target, []).append(table)
        except PredictorError:  # the fold cannot be fitted or predicted
            continue
        if one_fold:
            break
    return {target: pd.concat(found, ignore_index=True) for target, found in tables.items()}


def _predict_fold(
    fold_predictor: Predictor, known: pd.DataFrame, test: pd.DataFrame, target: Target
) -> pd.DataFrame:
    predicted = fold_predictor.predict(test)
    problems, known_problems = problems_of(test), set(problems_of(known))
    table = pd.DataFrame(
        {
            "problem": list(map(str, problems)),
            "truth": test[target].to_numpy(dtype=float),
            "prediction": predicted[target].to_numpy(),
            "low": predicted[f"{target}_low"].to_numpy(),
            "high": predicted[f"{target}_high"].to_numpy(),
            "task": test["device"].astype(str).to_numpy() + "/" + list(map(str, problems)),
            "twin": [p in known_problems for p in problems],
        }
    )
    found = predict_baselines(target, fold_predictor.features_.family, known, test)
    return table.assign(**{f"baseline {name}": values for name, values in found.items()})


def _scores(table: pd.DataFrame, model: str) -> dict[str, dict[str, float]]:
    truth = table["truth"].to_numpy()
    groups = pd.factorize(table["task"])[0]
    prediction = table["prediction"].to_numpy()
    bounds = table["low"].to_numpy(), table["high"].to_numpy()
    scores = {model: score(truth, prediction, groups, bounds)}
    for column in table.columns[table.columns.str.startswith("baseline ")]:
        values = table[column].to_numpy(dtype=float)
        if np.isfinite(values).all():
            scores[column.removeprefix("baseline ")] = score(truth, values, groups)
    return scores


def learning_curve(
    predictor: Predictor,
    runs: pd.DataFrame,
    target: Target = "time_ms",
    group: str = "problem",
    shares: Sequence[float] = CURVE_SHARES,
) -> pd.DataFrame:
    """Return the error on held-out groups by number of training runs.

    One fold of the grouped split is held out; growing shares of the other rows are used to fit
    predictors like ``predictor``. A row per share has ``rows`` in training, ``mape``,
    ``median_ape`` and ``coverage90``. Raises PredictorError if there is only one group.
    """
    all_runs = validate(runs).reset_index(drop=True)
    runs = newest_runs(all_runs).reset_index(drop=True)
    newest = matching_rows(runs, all_runs)
    folds = fold_of_rows(runs, "grouped", predictor.seed, group)
    if folds is None:
        raise PredictorError("all runs are of one group: nothing can be held out")
    train, test = np.flatnonzero(folds != 0), runs[folds == 0]
    order = np.random.default_rng(predictor.seed).permutation(len(train))
    points = []
    for share in shares:
        sampled = train[order[: max(int(share * len(train)), 1)]]
        if len(measured_rows(target, runs.iloc[sampled])) < MIN_ROWS:  # too few to learn from
            continue
        subset_predictor: Predictor = clone(predictor).set_params(targets=(target,))
        with warnings.catch_warnings(action="ignore", category=DataWarning):
            subset_predictor.fit(all_runs[np.isin(newest, sampled)])
        scores = evaluate_predictor(subset_predictor, test)[target]
        kept = {name: scores[name] for name in ("mape", "median_ape", "coverage90")}
        points.append({"rows": len(sampled), **kept})
    return pd.DataFrame(points)


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
        found = [
            (split, target, metrics["median_ape"])
            for target, splits in self.metrics().items()
            for split, metrics in splits.items()
        ]
        if not found:
            return str(self.validation)
        split, target, error = min(found, key=lambda each: each[0] != "grouped")
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
    if sizes or not {"kernel", "device", "status"} & set(runs.columns):
        runs = plain_runs(runs, sizes)
    predictor = Predictor(model, targets, seed, kernel, extra_columns, parameters).fit(runs)
    return Training(predictor, cross_validate(predictor, predictor.runs_, group, splits, validate))

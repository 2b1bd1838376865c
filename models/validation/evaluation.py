"""Scores fitted predictors on runs they have not seen."""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.base import clone

from foretune.datasets.runs import newest_runs
from foretune.datasets.schema import validate
from foretune.errors import DataWarning, PredictorError
from foretune.models.plausibility import drop_implausible
from foretune.models.predictor import Predictor
from foretune.models.repeats import NO_MATCH, matching_rows
from foretune.models.splits import fold_of_rows, task_numbers
from foretune.models.target_names import MIN_ROWS, Target
from foretune.models.targets import measured_rows
from foretune.models.validation.metrics import score

SIMULATED = "simulated.cycles"
"""Column of a simulator's cycles."""
CURVE_SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Shares of the rows at the points of a learning curve."""
CURVE_METRICS = ("mape", "median_ape", "coverage90")
"""Metrics of a learning curve."""


def evaluate_predictor(predictor: Predictor, runs: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the scores of a fitted predictor on new runs, by target.

    Raises PredictorError if the runs are of another kernel, none succeeded, or times are
    implausible.
    """
    runs = validate(runs).reset_index(drop=True)
    predictor.require_same_kernel(runs)
    runs = newest_runs(drop_implausible(predictor.declared_family, runs))
    scores = {}
    for target in predictor.targets_:
        rows = measured_rows(target, runs)
        if rows.empty:
            continue
        predicted = predictor.predict(rows)
        low = predicted[f"{target}_low"].to_numpy()
        high = predicted[f"{target}_high"].to_numpy()
        scores[str(target)] = score(
            rows[target].to_numpy(float),
            predicted[target].to_numpy(),
            groups=task_numbers(rows),
            interval=(low, high),
        )
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
    truth = rows["time_ms"].to_numpy(float)
    cycles = rows[SIMULATED].to_numpy(float)
    ms_per_cycle = np.exp(np.median(np.log(truth / cycles)))
    return score(truth, cycles * ms_per_cycle, groups=task_numbers(rows))


def count_seen_before(predictor: Predictor, runs: pd.DataFrame) -> int:
    """Return how many of ``runs`` have the same run in training."""
    match = matching_rows(predictor.measured_runs(), runs)
    return int((match != NO_MATCH).sum())


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
    run_of_measurement = matching_rows(runs, all_runs)
    folds = fold_of_rows(runs, "grouped", predictor.seed, group)
    if folds is None:
        raise PredictorError("all runs are of one group: nothing can be held out")

    training_rows = np.flatnonzero(folds != 0)
    test = runs[folds == 0]
    order = np.random.default_rng(predictor.seed).permutation(len(training_rows))
    points = []
    for share in shares:
        n_sampled = max(int(share * len(training_rows)), 1)
        sampled = training_rows[order[:n_sampled]]
        if len(measured_rows(target, runs.iloc[sampled])) < MIN_ROWS:  # too few to learn from
            continue
        subset_predictor: Predictor = clone(predictor).set_params(targets=(target,))
        with warnings.catch_warnings(action="ignore", category=DataWarning):
            subset_predictor.fit(all_runs[np.isin(run_of_measurement, sampled)])
        scores = evaluate_predictor(subset_predictor, test)[target]
        points.append({"rows": n_sampled, **{name: scores[name] for name in CURVE_METRICS}})
    return pd.DataFrame(points)

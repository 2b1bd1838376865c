"""Learning curves: error by number of runs."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.base import clone

from foretune.datasets import newest_runs
from foretune.datasets.schema import validate
from foretune.errors import PredictorError
from foretune.models.predictor import Predictor
from foretune.models.repeats import matching_rows
from foretune.models.targets import Target, usable_rows
from foretune.models.validation.data_checks import silence_warnings
from foretune.models.validation.evaluation import evaluate_predictor
from foretune.models.validation.splits import fold_of_rows

SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)


def learning_curve(
    predictor: Predictor,
    runs: pd.DataFrame,
    target: Target = "time_ms",
    group: str = "problem",
    shares: Sequence[float] = SHARES,
) -> pd.DataFrame:
    """Return the error on held-out groups by number of training runs.

    One fold of the grouped split is held out; growing shares of the other rows are used to fit
    predictors like ``predictor``. Raises PredictorError if there is only one group.

    Returns:
        One row per share: ``rows`` in training, ``mape``, ``median_ape``, ``coverage90``.
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
        try:
            usable_rows(target, runs.iloc[sampled])
        except PredictorError:  # too few to learn from
            continue
        subset_predictor: Predictor = clone(predictor).set_params(targets=(target,))
        with silence_warnings():
            subset_predictor.fit(all_runs[np.isin(newest, sampled)])
        scores = evaluate_predictor(subset_predictor, test)[target]
        kept = {name: scores[name] for name in ("mape", "median_ape", "coverage90")}
        points.append({"rows": len(sampled), **kept})
    return pd.DataFrame(points)

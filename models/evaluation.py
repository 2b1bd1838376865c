"""Honest validation: every row predicted by a model that did not see it, baselines beside it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from sklearn.base import clone

from foretune.datasets import latest
from foretune.datasets.schema import validate
from foretune.errors import PredictorError
from foretune.features import FeatureSet
from foretune.models.baselines import BASELINES
from foretune.models.calibration import cross_half_widths
from foretune.models.metrics import score
from foretune.models.predictor import Predictor, only_kernel
from foretune.models.splits import SPLITS, Group, Learn, fold_of_rows, groups_of, out_of_fold
from foretune.models.targets import Target, log_unit, usable_rows

Scores = dict[str, dict[str, dict[str, float]]]
"""split -> model or baseline -> metric -> value"""


def cross_validate(
    predictor: Predictor, runs: pd.DataFrame, target: Target, group: Group = "problem"
) -> Scores:
    """Return the scores of ``predictor``'s kind and of the baselines, for every possible split.

    The predictor itself is not changed. Coverage is scored with intervals from the other folds.
    """
    trial: Predictor = clone(predictor)
    runs = latest(validate(runs))
    trial.features_ = FeatureSet(trial.kernel_for(only_kernel(runs))).fit(runs)
    rows = usable_rows(target, runs)
    X, y = trial.learning_rows(target, rows)
    unit = log_unit(target, trial.features_, rows)
    contenders: dict[str, Learn] = {predictor.model: trial.learn, **BASELINES}
    scores: Scores = {}
    for split in SPLITS:
        folds = fold_of_rows(rows, split, predictor.seed, group)
        if folds is None:
            continue
        scores[split] = {
            name: _score_folds(learn, X, y, unit, folds, groups_of(rows))
            for name, learn in contenders.items()
        }
    return scores


def evaluate_predictor(predictor: Predictor, runs: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the scores of a fitted predictor on runs it has not seen, by target.

    Raises:
        PredictorError: the runs are of another kernel, or none succeeded.
    """
    runs = latest(validate(runs))
    if (name := only_kernel(runs)) != predictor.kernel_name_:
        raise PredictorError(
            f"the predictor knows {predictor.kernel_name_!r}, the runs are of {name!r}"
        )
    scores = {}
    for target, fitted in predictor.targets_.items():
        if target not in runs or runs[target].isna().all():
            continue
        rows = usable_rows(target, runs)
        prediction = predictor.predict(rows)[target].to_numpy()
        widths = np.full(len(rows), fitted.half_width)
        scores[str(target)] = score(
            rows[target].to_numpy(float), prediction, groups_of(rows), widths
        )
    if not scores:
        raise PredictorError(f"none of the runs succeeded with {', '.join(predictor.targets_)}")
    return scores


def metrics_table(scores: Mapping[str, Scores]) -> pd.DataFrame:
    """Return one row per target, split and model, for people."""
    return pd.DataFrame(
        [
            {"target": target, "split": split, "model": model, **metrics}
            for target, splits in scores.items()
            for split, models in splits.items()
            for model, metrics in models.items()
        ]
    )


def _score_folds(
    learn: Learn,
    X: np.ndarray,
    y: np.ndarray,
    unit: np.ndarray,
    folds: np.ndarray,
    groups: np.ndarray,
) -> dict[str, float]:
    prediction = out_of_fold(learn, X, y, folds)
    widths = cross_half_widths(y - prediction, folds)
    return score(np.exp(y + unit), np.exp(prediction + unit), groups, widths)

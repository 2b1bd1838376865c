"""Which predictor of a kernel is the champion: the alias of a new one, and why.

A new predictor becomes champion if it is better than every baseline on held-out problems, and
better than the present champion. The two are compared on problems that neither learned from, if
there are enough.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.datasets.runs import newest_runs, problems_of
from foretune.errors import ForetuneError
from foretune.models.predictor import Predictor
from foretune.models.target_names import Target
from foretune.models.targets import measured_rows
from foretune.models.training import Training
from foretune.models.validation.baselines import SIMPLE

CHAMPION = "champion"
CHALLENGER = "challenger"
METRIC = "median_ape"  # the typical error: median of absolute errors, relative
MIN_NEW_PROBLEMS = 2  # minimum number of problems new to both predictors for a direct comparison


@dataclass(frozen=True)
class PromotionDecision:
    """The alias of a new predictor, with the reason and its error on held-out problems."""

    alias: str
    reason: str
    error: float


@dataclass(frozen=True)
class Champion:
    """The present champion; ``held_out_error`` is its `METRIC` in its own training, or NaN."""

    predictor: Predictor
    held_out_error: float


def decide_promotion(training: Training, champion: Champion | None) -> PromotionDecision:
    """Return a new predictor's alias; ``champion`` is the present one."""
    target = next(iter(training.predictor.targets_))
    scores = training.scores[target].get("grouped")
    if scores is None:
        reason = "no problem was held out: train it on runs of several problems"
        return PromotionDecision(CHALLENGER, reason, np.nan)

    # Simple models of the raw columns tell a reader what a predictor is worth. They are no rivals
    # here: no search can start from them.
    errors = {name: metrics[METRIC] for name, metrics in scores.items() if name not in SIMPLE}
    error = errors.pop(training.predictor.model)
    best_baseline = min(errors, key=lambda name: errors[name], default=None)

    # A predictor that is no better than a baseline is not promoted.
    if best_baseline is not None and not error < errors[best_baseline]:
        reference = f"of the baseline {best_baseline!r}"
        reason = _comparison_text(error, errors[best_baseline], reference, is_better=False)
        return PromotionDecision(CHALLENGER, reason, error)

    if champion is not None:
        return _compare_with_champion(training, champion, target, error)

    # Without a champion, the first predictor that beats the baselines is one.
    reason = "the first champion"
    if best_baseline is not None:
        reference = f"of the best baseline, {best_baseline!r}"
        comparison = _comparison_text(error, errors[best_baseline], reference, is_better=True)
        reason = f"{reason}: {comparison}"
    return PromotionDecision(CHAMPION, reason, error)


def _compare_with_champion(
    training: Training, champion: Champion, target: Target, error: float
) -> PromotionDecision:
    """Return the decision between a new predictor and the champion."""
    held_out = training.validation.held_out[target]
    learned_by_champion = set(map(str, problems_of(champion.predictor.measured_runs())))
    new_to_both = held_out[~held_out["problem"].isin(learned_by_champion)]
    n_problems = new_to_both["problem"].nunique()

    if n_problems >= MIN_NEW_PROBLEMS:
        runs = measured_rows(target, newest_runs(training.predictor.runs_))
        problems = set(new_to_both["problem"])
        rows = runs[[str(problem) in problems for problem in problems_of(runs)]]
        try:
            predicted = champion.predictor.predict(rows)[target]
        except (ForetuneError, KeyError) as e:
            reason = f"the champion cannot predict these runs: {e}"
            return PromotionDecision(CHAMPION, reason, error)
        new_error = _typical_error(new_to_both["truth"], new_to_both["prediction"])
        champion_error = _typical_error(rows[target], predicted)
        reference = f"of the champion on {n_problems} problems new to both"
    else:
        new_error = error
        champion_error = champion.held_out_error
        reference = "of the champion, each on problems held out in training"

    is_better = new_error < champion_error or bool(np.isnan(champion_error))
    reason = _comparison_text(new_error, champion_error, reference, is_better=is_better)
    return PromotionDecision(CHAMPION if is_better else CHALLENGER, reason, error)


def _typical_error(truth: pd.Series, predicted: pd.Series) -> float:
    true_values = truth.to_numpy(float)
    errors = np.abs(predicted.to_numpy() - true_values) / true_values
    return float(np.median(errors))


def _comparison_text(
    new_error: float, reference_error: float, reference: str, *, is_better: bool
) -> str:
    relation = "better than" if is_better else "no better than"
    return (
        f"typical error {100 * new_error:.1f} % is {relation} the "
        f"{100 * reference_error:.1f} % {reference}"
    )

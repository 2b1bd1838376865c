"""Decides whether a new predictor becomes the champion or the challenger.

The champion must have a smaller typical error on held-out problems than every baseline on the same
rows, and than the present champion. The two predictors are compared on held-out problems that are
new to both. Without enough of these, each counts with its error from its own training.
"""

from dataclasses import dataclass

import numpy as np

from foretune.datasets.runs import newest_runs, problems_of
from foretune.errors import ForetuneError
from foretune.models.predictor import Predictor
from foretune.models.targets import measured_rows
from foretune.models.training import Training

CHAMPION, CHALLENGER = "champion", "challenger"
METRIC = "median_ape"
MIN_NEW_PROBLEMS = 2
"""Minimum number of problems new to both predictors for a direct comparison."""


@dataclass(frozen=True)
class PromotionDecision:
    """The alias of a new predictor, with the reason and its error on held-out problems."""

    alias: str
    reason: str
    error: float


def decide_promotion(
    training: Training, present: Predictor | None, present_error: float
) -> PromotionDecision:
    """Return the alias of a new predictor.

    Args:
        training: the new predictor and its scores.
        present: the present champion, if any.
        present_error: the champion's held-out `METRIC` from its training; NaN if unknown.
    """
    target = next(iter(training.predictor.targets_))
    splits = training.scores[target]
    if "grouped" not in splits:
        reason = "no problem was held out: train it on runs of several problems"
        return PromotionDecision(CHALLENGER, reason, np.nan)
    scores = splits["grouped"]
    error = scores[training.predictor.model][METRIC]
    others = {n: s[METRIC] for n, s in scores.items() if n != training.predictor.model}
    name = min(others, key=lambda n: others[n], default="")
    if name and not error < others[name]:
        return PromotionDecision(
            CHALLENGER,
            _comparison_text(error, others[name], f"of the baseline {name!r}", False),
            error,
        )
    if present is None:
        reason = "there is no champion to beat"
        if name:
            words = _comparison_text(error, others[name], f"of the best baseline, {name!r}", True)
            reason = f"{reason}; {words}"
        return PromotionDecision(CHAMPION, reason, error)
    held_out = training.validation.held_out[target]
    known = set(map(str, problems_of(present.measured_runs())))
    new = held_out[~held_out["problem"].isin(known)]
    if new["problem"].nunique() >= MIN_NEW_PROBLEMS:
        runs = measured_rows(target, newest_runs(training.predictor.runs_))
        rows = runs[[str(p) in set(new["problem"]) for p in problems_of(runs)]]
        try:
            predicted = present.predict(rows)[target].to_numpy()
        except (ForetuneError, KeyError) as e:
            return PromotionDecision(
                CHAMPION, f"the champion cannot predict these runs: {e}", error
            )
        new_error = _error(new["truth"].to_numpy(), new["prediction"].to_numpy())
        reference_error = _error(rows[target].to_numpy(float), predicted)
        reference = f"of the champion on {new['problem'].nunique()} problems new to both"
    else:
        new_error, reference_error = error, present_error
        reference = "of the champion, each on problems held out in training"
    better = bool(new_error < reference_error) or np.isnan(reference_error)
    return PromotionDecision(
        CHAMPION if better else CHALLENGER,
        _comparison_text(new_error, reference_error, reference, better),
        error,
    )


def _error(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.median(np.abs(predicted - truth) / truth))


def _comparison_text(new_error: float, reference_error: float, reference: str, better: bool) -> str:
    relation = "better than" if better else "no better than"
    return (
        f"typical error {100 * new_error:.1f} % is {relation} the "
        f"{100 * reference_error:.1f} % {reference}"
    )

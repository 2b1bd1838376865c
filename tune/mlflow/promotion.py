"""Which predictor others should take: the champion, and what has to be better than it.

A new predictor becomes champion if its typical error on held-out problems is smaller than that of
every baseline on the same rows, and than that of the present champion: on those of its held-out
problems that the champion has not learned from, where there are enough; else each by what it was
held to when it was trained. Otherwise it is the challenger.
"""

from dataclasses import dataclass

import numpy as np

from foretune.datasets import newest_runs
from foretune.datasets.runs import problems_of
from foretune.errors import ForetuneError
from foretune.models import Predictor, Training
from foretune.models.targets import measured_rows

CHAMPION, CHALLENGER = "champion", "challenger"
METRIC = "median_ape"
MIN_NEW_PROBLEMS = 2
"""Held-out problems new to the champion on which the two can be compared."""


@dataclass(frozen=True)
class PromotionDecision:
    """What a new predictor is to be called, and why.

    Attributes:
        alias: `CHAMPION` or `CHALLENGER`.
        reason: one line.
        error: its `METRIC` on held-out problems; NaN where none were held out.
    """

    alias: str
    reason: str
    error: float


def decide_promotion(
    training: Training, present: Predictor | None, present_error: float
) -> PromotionDecision:
    """Return whether a new predictor becomes champion.

    Args:
        training: of the new one.
        present: the champion; None where there is none.
        present_error: the champion's `METRIC` on problems held out when it was trained; NaN where
            nobody knows.
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
    reference = f"{100 * reference_error:.1f} % {reference}"
    return f"typical error {100 * new_error:.1f} % is {relation} the {reference}"

"""Is a predictor worth having? Its errors on held-out problems beside those of simple models.

A predictor is *weak* if its mean error is not below that of every baseline. It is *useless* if its
typical (median) error is not below that of one value for all runs, their median.
"""

import math
from collections.abc import Mapping

from foretune.models.validation.simple_models import MEDIAN

TYPICAL = "median_ape"
MEAN = "mape"
SplitScores = Mapping[str, Mapping[str, float]]
"""Model or baseline -> metric -> value; the predictor's model comes first."""


def weakness_of(target: str, scores: SplitScores) -> str:
    """Return a sentence on a predictor that is weak or useless; "" if it is neither.

    ``scores`` are those on held-out problems.
    """
    if len(scores) < 2:  # no baseline
        return ""
    model = next(iter(scores))

    typical = scores[model].get(TYPICAL, math.nan)
    typical_of_median = scores.get(MEDIAN, {}).get(TYPICAL, math.nan)
    if typical >= typical_of_median:
        return (
            f"This predictor of {target} is useless: its typical error on held-out problems is "
            f"{_percent(typical)}, that of the median of all runs {_percent(typical_of_median)}. "
            "Train it on more problems, or give the columns that the time depends on."
        )

    best = best_baseline(scores)
    if best is None:
        return ""
    mean = scores[model].get(MEAN, math.nan)
    mean_of_best = scores[best][MEAN]
    if mean < mean_of_best:
        return ""
    return (
        f"This predictor of {target} is no better than {best} on held-out problems: mean error "
        f"{_percent(mean)} against {_percent(mean_of_best)}. Train it on more problems."
    )


def best_baseline(scores: SplitScores) -> str | None:
    """Return the baseline with the smallest mean error; None if no baseline has one.

    The first of ``scores`` is the predictor.
    """
    errors = {name: scores[name].get(MEAN, math.nan) for name in list(scores)[1:]}
    known_errors = {name: error for name, error in errors.items() if not math.isnan(error)}
    return min(known_errors, key=lambda name: known_errors[name], default=None)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

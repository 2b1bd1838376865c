"""What tuning several problems has found, in one sentence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.objective import Objective
from foretune.tune.results import Comparison, TuneResult
from foretune.values import counted

OUTCOME_TEXT = {
    Objective.TIME: "faster than the default",
    Objective.ENERGY: "with less energy than the default",
    Objective.EDP: "better than the default in energy × time",
}


@dataclass(frozen=True)
class MeanRatio:
    """A geometric mean of speed-ups and its interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({self.low:.2f}–{self.high:.2f})"


def mean_ratio(winners: Sequence[Comparison]) -> MeanRatio:
    """Return the geometric mean of the winners' ratios to their defaults.

    The problems were measured independently, so the squares of the half widths add up, in
    logarithms. A default that stays counts as 1, without width.
    """
    n = len(winners)
    log_ratio = sum(math.log(winner.ratio) for winner in winners) / n
    half_width = (
        math.hypot(*(math.log(winner.ratio_high / winner.ratio_low) / 2 for winner in winners)) / n
    )
    return MeanRatio(
        ratio=math.exp(log_ratio),
        low=math.exp(log_ratio - half_width),
        high=math.exp(log_ratio + half_width),
    )


def outcome(results: Sequence[TuneResult], what: str = "problem") -> str:
    """Return how many problems have a verified winner, by how much, and how many are open.

    For example ``1 of 2 problems faster than the default: 1.20× (1.10–1.31) on average,
    1 inconclusive``. A default that stays counts as 1. ``what`` is the noun, in the singular.
    """
    n_improved = sum(result.verified for result in results)
    text = f"{n_improved} of {counted(len(results), what)} {OUTCOME_TEXT[results[0].objective]}: "
    if n_improved:
        text += str(mean_ratio([result.winner for result in results]))
        text += " on average" if len(results) > 1 else ""
    else:
        text += "no measurable win"
    n_open = sum(result.verdict == "inconclusive" for result in results)
    return f"{text}, {n_open} inconclusive" if n_open else text

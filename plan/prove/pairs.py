"""Compares two settings by starts in turn, because starts of one setting differ.

The interval is Student's, of the log ratios of pairs, as the kernels' verifier has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isfinite, log, nan
from statistics import fmean, variance

from foretune.support.ratio_interval import ratio_interval

ERROR = 0.05
"""Probability outside of the interval."""
MIN_PAIRS = 3
"""Pairs of any verdict: an interval from two says nothing."""


@dataclass(frozen=True)
class PairedComparison:
    """How many times better a setting is than the plan's own, with a 95 % interval.

    Attributes:
        ratios: score of the plan's setting over that of the other, per pair.
        reason: why there is no verdict; empty if there is one.
    """

    ratios: tuple[float, ...]
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The mean ratio; NaN without a pair."""
        return exp(fmean(map(log, self.ratios))) if self.ratios else nan

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval; NaN with fewer than `MIN_PAIRS`."""
        if len(self.ratios) < MIN_PAIRS:
            return nan, nan
        logs = [log(ratio) for ratio in self.ratios]
        interval = ratio_interval(
            fmean(logs), variance=variance(logs), n=len(logs), error=ERROR / 2
        )
        return interval.low, interval.high

    @property
    def is_verified(self) -> bool:
        """Whether the other setting is better beyond doubt."""
        return self.interval[0] > 1.0


def compare_in_turn(
    start: Callable[[bool], float], pairs: int, may_go_on: Callable[[], bool]
) -> PairedComparison:
    """Start the plan's setting and another in turn: A B, then B A, then A B again.

    Args:
        start: starts the other setting (True) or the plan's (False), and returns its score.
        pairs: number of pairs.
        may_go_on: whether the budget allows another pair.
    """
    ratios: list[float] = []
    for pair in range(pairs):
        if not may_go_on():
            break
        order = (False, True) if pair % 2 == 0 else (True, False)
        scores = {is_other: start(is_other) for is_other in order}
        if not all(map(isfinite, scores.values())):
            return PairedComparison(tuple(ratios), "a start of the comparison failed")
        ratios.append(scores[False] / scores[True])
    reason = (
        ""
        if len(ratios) >= MIN_PAIRS
        else f"it takes {MIN_PAIRS} pairs of starts, the budget had {len(ratios)}"
    )
    return PairedComparison(tuple(ratios), reason)


NO_COMPARISON = PairedComparison((), "the plan's own setting is the best")
"""The comparison of a setting with itself."""

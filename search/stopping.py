"""When a search is over: sure enough, no longer worth it, or not allowed to go on."""

from dataclasses import dataclass

from foretune.errors import UsageError
from foretune.search.searcher import Searcher

MIN_GAIN_SHARE = 0.1
"""Expected gain of one more measurement, relative to the accepted regret, below which it is not
made: what is left to lose is then spread over many candidates, each unlikely to be the best."""


@dataclass(frozen=True)
class Stopping:
    """The one rule by which searches end.

    Attributes:
        measurements: measurements at most; None: as many as there are configurations.
        regret: the search ends when its expected regret is no larger, e.g. 0.03 for 3 %, or one
            more measurement is expected to gain no more than `WORTH` of it; None: only
            ``measurements`` counts.
        seconds: so much wall time at most; what is under way then is finished. None: any.

    Raises:
        UsageError: one of them is below 0.
    """

    measurements: int | None = None
    regret: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.measurements is not None and self.measurements < 0:
            raise UsageError(f"{self.measurements} measurements: give 0 or more")
        if self.regret is not None and not self.regret >= 0:
            raise UsageError(f"regret {self.regret}: give a share such as 0.03")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"{self.seconds:g} seconds for a search: give more than 0")

    def is_spent(self, measured: int, elapsed_s: float) -> bool:
        """Whether measurements or seconds are used up."""
        spent = self.measurements is not None and measured >= self.measurements
        return spent or (self.seconds is not None and elapsed_s >= self.seconds)

    def is_over(self, searcher: Searcher, measured: int, elapsed_s: float = 0.0) -> bool:
        """Whether to stop after ``measured`` measurements; ``searcher`` was told of them."""
        if self.is_spent(measured, elapsed_s):
            return True
        if self.regret is None:
            return False
        return (
            searcher.expected_regret() <= self.regret
            or searcher.expected_improvement() <= MIN_GAIN_SHARE * self.regret
        )

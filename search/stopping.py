"""Stopping rules of a search: measurements, seconds, expected regret."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

from foretune.errors import UsageError
from foretune.search.searcher import AskTell

DEFAULT_BUDGET = 10  # measurements of a search without a budget in measurements or seconds
DEFAULT_REGRET = 0.03  # accepted expected regret of the budget "auto"
StopReason = Literal["budget", "seconds", "regret", "exhausted"]

MIN_GAIN_SHARE = 0.1
"""A search also stops when one more measurement is expected to gain less than this share of the
accepted regret. The remaining regret is then spread over many candidates, each unlikely to win."""


@dataclass(frozen=True)
class Stopping:
    """When a search stops: at the first limit that it reaches; None is no limit.

    It also stops when one more measurement is expected to gain less than `MIN_GAIN_SHARE` of
    ``regret``, the accepted expected regret (0.03 for 3 %). No measurement starts after ``seconds``
    of wall time. Raises UsageError if a limit is negative.
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

    def reason(
        self, searcher: AskTell[Any], measured: int, elapsed_s: float = 0.0
    ) -> StopReason | None:
        """Return why to stop after ``measured`` measurements; None to go on."""
        if self.measurements is not None and measured >= self.measurements:
            return "budget"
        if self.seconds is not None and elapsed_s >= self.seconds:
            return "seconds"
        if self.regret is not None and (
            searcher.expected_regret() <= self.regret
            or searcher.expected_improvement() <= MIN_GAIN_SHARE * self.regret
        ):
            return "regret"
        return None


def make_stopping(
    budget: int | str | None, regret: float | None, seconds: float | None = None
) -> Stopping:
    """Return the stopping rule of a budget: a number of measurements, or "auto".

    "auto" stops at the expected ``regret``, by default `DEFAULT_REGRET`. None is `DEFAULT_BUDGET`,
    or no limit if ``seconds`` is given. Raises UsageError if the budget is another text or below 1.
    """
    if budget == "auto":
        return Stopping(None, DEFAULT_REGRET if regret is None else regret, seconds)
    if budget is None:
        return Stopping(DEFAULT_BUDGET if seconds is None else None, regret, seconds)
    measurements = _as_count(budget)
    if measurements < 1:
        raise UsageError(f"budget {budget} leaves nothing to measure: give at least 1")
    return Stopping(measurements, regret, seconds)


def _as_count(budget: object) -> int:
    """Return a budget as a number; integers of NumPy are numbers, too."""
    if isinstance(budget, bool) or not isinstance(budget, Integral):
        raise UsageError(f"budget is {budget!r}: give a number or 'auto'")
    return int(budget)
